"""What happened in a simulation: each request's times, each step's size, as they come. Sums are made in results.py."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from kvwise.engine.queue import RequestQueue
from kvwise.kvcache import CacheStats, KVCache
from kvwise.planner.simulation.request import SimulatedRequest


class Served(NamedTuple):
    """A request that got all its tokens. Seconds on the virtual clock; start_s: of the first step that computed it."""

    number: int
    arrival_s: float
    start_s: float
    first_token_s: float
    end_s: float
    prompt_tokens: int
    output_tokens: int
    num_cached_tokens: int
    num_preemptions: int

    @property
    def tpot_s(self) -> float | None:
        """(e2e - ttft) / (N - 1); None for a single token."""
        return (self.end_s - self.first_token_s) / (self.output_tokens - 1) if self.output_tokens > 1 else None


class Refusal(NamedTuple):
    number: int
    arrival_s: float
    reason: str


class Record:
    """`intervals` are pairs (seconds between two tokens of a request, how many such) in two arrays.

    The step arrays have one entry for each step: when it began, its seconds, requests running and waiting, blocks
    used, tokens computed.
    """

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks, self.block_tokens = num_blocks, block_tokens
        self.requests: list[Served] = []
        self.refusals: list[Refusal] = []
        self.num_preemptions = 0
        self.end_s = 0.0
        self.cache: CacheStats | None = None
        self.interval_s, self.interval_counts = array("d"), array("q")
        self.step_start_s, self.step_seconds = array("d"), array("d")
        self.num_running, self.num_waiting = array("q"), array("q")
        self.used_blocks, self.step_tokens = array("q"), array("q")

    @property
    def num_steps(self) -> int:
        return len(self.step_start_s)

    def add_step(
        self, start_s: float, seconds: float, queue: RequestQueue[SimulatedRequest], cache: KVCache, num_tokens: int
    ) -> None:
        used = cache.pool.num_used_blocks
        self.add_sample(start_s, seconds, len(queue.running), len(queue.waiting), used, num_tokens)

    def add_sample(
        self, start_s: float, seconds: float, num_running: int, num_waiting: int, used_blocks: int, num_tokens: int
    ) -> None:
        self.step_start_s.append(start_s)
        self.step_seconds.append(seconds)
        self.num_running.append(num_running)
        self.num_waiting.append(num_waiting)
        self.used_blocks.append(used_blocks)
        self.step_tokens.append(num_tokens)

    def add_intervals(self, seconds: float, count: int) -> None:
        if count:
            self.interval_s.append(seconds)
            self.interval_counts.append(count)

    def add_request(self, request: SimulatedRequest) -> None:
        """A request that has its last token."""
        assert request.start_s is not None
        assert request.first_token_s is not None
        self.requests.append(
            Served(
                request.arrival_order,
                request.arrival_s,
                request.start_s,
                request.first_token_s,
                request.last_token_s,
                request.num_prompt_tokens,
                request.size.output_tokens,
                request.num_cached_tokens or 0,
                request.num_preemptions,
            )
        )

    def close(self, cache: CacheStats, end_s: float) -> None:
        self.cache, self.end_s = cache, end_s
