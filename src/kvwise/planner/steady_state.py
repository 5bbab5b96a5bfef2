"""Requests that follow one another without end: what a closed loop settles to, as a formula instead of a simulation.

`running` requests of equal lengths are under way; each that ends is followed by a new one at once. So per step
λ = running / output tokens prompts begin, and in the time of one response every request but itself begins once:

    mixed       a step with prompts holds max(1, λ) of them, cut where they exceed the step's tokens; as many
                steps as that needs are mixed. TPOT = decode + (mixed - decode) · their share · (running - 1) / running.
                Where prompts alone would need more than all steps, λ is what the steps hold, and requests wait.
    prompts     requests that begin together wait for each other's prompts, on average for half of them before their
    first       first token and for half after it

Percentiles, arrivals and preemption are for planner/simulation. Pure.
"""

from __future__ import annotations

import math
from dataclasses import replace

from kvwise.backends.price.step import StepPricer
from kvwise.frozen import dataclass
from kvwise.spec.shape import StepShape


@dataclass(frozen=True, slots=True)
class Workload:
    """`concurrency` requests at once, each of so many tokens; `running` of them fit the cache, the others wait."""

    prompt_tokens: int
    output_tokens: int
    concurrency: int = 1
    cache_tokens: int | None = None  # None: room for all

    @property
    def running(self) -> int:
        """A request holds its prompt and, half of the time, more than half of its output."""
        if self.cache_tokens is None:
            return self.concurrency
        held = self.prompt_tokens + math.ceil(0.75 * self.output_tokens)
        return max(1, min(self.concurrency, self.cache_tokens // held))

    @property
    def mean_context(self) -> int:
        """Of a decode step, over the response."""
        return self.prompt_tokens + (self.output_tokens + 1) // 2

    def part(self, parts: int) -> Workload:
        """One of `parts` groups of its requests."""
        if parts == 1:
            return self
        cache_tokens = None if self.cache_tokens is None else self.cache_tokens // parts
        return replace(self, concurrency=math.ceil(self.concurrency / parts), cache_tokens=cache_tokens)

    @property
    def tokens_per_step(self) -> float:
        """Decoded and prompt tokens of the mean step: running · (prompt + output) / output."""
        return self.running * (self.prompt_tokens + self.output_tokens) / self.output_tokens


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Seconds in the mean. tpot_s is None for one output token. waiting_s: part of ttft_s, for room in the cache."""

    decode_step_s: float
    ttft_s: float
    tpot_s: float | None
    waiting_s: float

    def e2e_s(self, output_tokens: int) -> float:
        return self.ttft_s + (output_tokens - 1) * (self.tpot_s or 0.0)


def steady_state(pricer: StepPricer, work: Workload, *, step_tokens: int, mixes_prefill: bool = True) -> SteadyState:
    """`step_tokens`: the most that one step computes. Raises what `pricer` raises."""
    decode_s = pricer.seconds(StepShape.decode(work.mean_context, work.running))
    if mixes_prefill:
        ttft_s, stall_s = _mixed(pricer, work, step_tokens, decode_s)
    else:
        ttft_s, stall_s = _prompts_first(pricer, work, step_tokens)
    tpot_s = None if work.output_tokens == 1 else decode_s + stall_s
    cycle_s = ttft_s + (work.output_tokens - 1) * (tpot_s or 0.0)
    waiting_s = (work.concurrency - work.running) / work.running * cycle_s
    return SteadyState(decode_s, waiting_s + ttft_s, tpot_s, waiting_s)


def _mixed(pricer: StepPricer, work: Workload, step_tokens: int, decode_s: float) -> tuple[float, float]:
    """(TTFT, what prompts add to the mean decode step)."""
    begun = min(work.running / work.output_tokens, step_tokens / work.prompt_tokens)  # prompts per step
    together = max(1.0, begun)
    steps = max(1, math.ceil(together * work.prompt_tokens / step_tokens))
    prompts = max(1, round(together / steps))
    tokens = max(1, round(together * work.prompt_tokens / steps / prompts))
    decodes = max(0, min(work.running - prompts, round(begun * (work.output_tokens - 1))))
    end = work.prompt_tokens if steps == 1 else (work.prompt_tokens + tokens) // 2
    shape = StepShape(
        (1,) * decodes + (tokens,) * prompts,
        (work.mean_context,) * decodes + (max(end, tokens),) * prompts,
        decodes + prompts,
    )
    mixed_s = pricer.seconds(shape)
    share = min(1.0, steps * begun / together)
    stall_s = max(0.0, mixed_s - decode_s) * share * (work.running - 1) / work.running
    mean_s = decode_s + stall_s
    wait_s = mean_s / 2 if work.running > 1 else 0.0  # the step that runs when the request comes
    # Where prompts alone fill the steps, Little's law says how long one waits for its turn.
    queue_s = (work.running / begun - (work.output_tokens - 1)) * mean_s if share == 1.0 else 0.0
    return max(wait_s + steps * mixed_s, queue_s), stall_s


def _prompts_first(pricer: StepPricer, work: Workload, step_tokens: int) -> tuple[float, float]:
    together = min(work.running, max(1, step_tokens // work.prompt_tokens))
    chunks = max(1, math.ceil(work.prompt_tokens / step_tokens))
    tokens = math.ceil(work.prompt_tokens / chunks)
    end = work.prompt_tokens if chunks == 1 else (work.prompt_tokens + tokens) // 2
    batch_s = chunks * pricer.seconds(StepShape((tokens,) * together, (max(end, tokens),) * together, together))
    all_s = batch_s * work.running / together
    others = (work.running - 1) / work.running
    stall_s = all_s / 2 * others / max(1, work.output_tokens - 1)
    return batch_s + (all_s - batch_s) / 2, stall_s
