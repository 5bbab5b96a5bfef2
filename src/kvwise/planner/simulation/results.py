"""From a record to what people ask of it: percentiles of latency, throughput, use of the cache, a summary over time.

    queueing = first computed - arrival      ttft = first token - arrival      e2e = last token - arrival
    tpot = (e2e - ttft) / (N - 1), none for N = 1                              itl: each interval between two tokens

A percentile is by nearest rank: a value that occurred, so "p99 <= limit" says that at least 99 % kept the limit.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Final

from kvwise.planner.simulation.record import Record, Served

PERCENTILES: Final = (50, 90, 95, 99)
_REFUSALS_SHOWN: Final = 3
_TIMELINE_PARTS: Final = 40  # as wide as a terminal has room for, and enough to see a queue grow


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of `count` values; `percentiles` by the numbers of PERCENTILES."""

    count: int
    mean: float
    percentiles: Mapping[int, float]
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution | None:
        """None where there are no values."""
        return cls.weighted((value, 1) for value in values)

    @classmethod
    def weighted(cls, values: Iterable[tuple[float, int]]) -> Distribution | None:
        """Of values that occur several times each."""
        ordered = sorted(values)
        if not ordered:
            return None
        ends = list(accumulate(count for _, count in ordered))
        mean = math.fsum(value * count for value, count in ordered) / ends[-1]
        return cls(ends[-1], mean, {p: _nearest_rank(ordered, ends, p) for p in PERCENTILES}, ordered[-1][0])

    def to_json(self) -> dict[str, float]:
        shares = {f"p{p}": value for p, value in self.percentiles.items()}
        return {"count": self.count, "mean": self.mean, **shares, "max": self.max}


def percentile_of(values: Iterable[tuple[float, int]], percentile: float) -> float | None:
    """Of values that occur several times each; None where there are none."""
    ordered = sorted(values)
    return _nearest_rank(ordered, list(accumulate(count for _, count in ordered)), percentile) if ordered else None


def _nearest_rank(ordered: list[tuple[float, int]], ends: list[int], percentile: float) -> float:
    """The smallest value that at least `percentile` % of all do not exceed; `ends` are the running sums of counts."""
    rank = math.ceil(ends[-1] * percentile / 100 - 1e-9)  # the product of floats may lie above a whole number
    return ordered[bisect_left(ends, max(rank, 1))][0]


LATENCIES: Final[Mapping[str, Callable[[Served], float | None]]] = {
    "queueing": lambda served: served.start_s - served.arrival_s,
    "ttft": lambda served: served.first_token_s - served.arrival_s,
    "tpot": lambda served: served.tpot_s,
    "e2e": lambda served: served.end_s - served.arrival_s,
}
"""Seconds that a request has one of each; by the names that an SLO uses."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Means over `seconds` from `start_s`; tokens_per_s are computed ones, prompts included."""

    start_s: float
    seconds: float
    running: float
    waiting: float
    used_blocks: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A simulation in figures. Rates are over `seconds`, from the first arrival to the last token.

    refusals: why, of the first few; num_requests - num_served are refused. latencies: by "queueing", "ttft", "tpot",
    "e2e" and "itl"; None where no request has one. cache_peak, cache_mean: shares of the pool's blocks in use, the mean
    over time. hit_rate: of all tokens that were looked up in the cache. busy: share of the time in which a step ran.
    """

    num_requests: int
    num_served: int
    refusals: tuple[str, ...]
    seconds: float
    latencies: Mapping[str, Distribution | None]
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    num_steps: int
    num_preemptions: int
    num_blocks: int
    cache_peak: float
    cache_mean: float
    hit_rate: float
    running_peak: int
    running_mean: float
    waiting_peak: int
    busy: float
    timeline: tuple[Moment, ...]

    def to_json(self) -> dict[str, object]:
        out = asdict(self)
        out["latencies"] = {name: None if d is None else d.to_json() for name, d in self.latencies.items()}
        out["timeline"] = [asdict(moment) for moment in self.timeline]
        return out


def summarize(record: Record) -> Summary:
    """The figures of `record`. Pure."""
    start_s = min((served.arrival_s for served in record.requests), default=0.0)
    seconds = record.end_s - start_s
    per_s = 1.0 / seconds if seconds > 0 else 0.0
    outputs = sum(served.output_tokens for served in record.requests)
    prompts = sum(served.prompt_tokens for served in record.requests)
    step_s = math.fsum(record.step_seconds)
    used, running = _weigh(record, record.used_blocks), _weigh(record, record.num_running)
    return Summary(
        num_requests=len(record.requests) + len(record.refusals),
        num_served=len(record.requests),
        refusals=tuple(refusal.reason for refusal in record.refusals[:_REFUSALS_SHOWN]),
        seconds=seconds,
        latencies=_latencies(record),
        requests_per_s=len(record.requests) * per_s,
        output_tokens_per_s=outputs * per_s,
        total_tokens_per_s=(outputs + prompts) * per_s,
        num_steps=record.num_steps,
        num_preemptions=record.num_preemptions,
        num_blocks=record.num_blocks,
        cache_peak=max(record.used_blocks, default=0) / record.num_blocks,
        cache_mean=used * per_s / record.num_blocks,
        hit_rate=record.cache.hit_rate if record.cache is not None else 0.0,
        running_peak=max(record.num_running, default=0),
        running_mean=running * per_s,
        waiting_peak=max(record.num_waiting, default=0),
        busy=step_s * per_s,
        timeline=tuple(_timeline(record, start_s, seconds)),
    )


def _latencies(record: Record) -> dict[str, Distribution | None]:
    out = {
        name: Distribution.of(value for served in record.requests if (value := latency(served)) is not None)
        for name, latency in LATENCIES.items()
    }
    out["itl"] = Distribution.weighted(zip(record.interval_s, record.interval_counts, strict=True))
    return out


def _weigh(record: Record, values: Iterable[int]) -> float:
    """Σ of values times their steps' seconds."""
    return math.fsum(value * seconds for value, seconds in zip(values, record.step_seconds, strict=True))


def _timeline(record: Record, start_s: float, seconds: float) -> Iterator[Moment]:
    """Equal parts of the time; a step counts in each part for as long as it ran in it."""
    if not seconds > 0:
        return
    width = seconds / _TIMELINE_PARTS
    sums = [[0.0] * 4 for _ in range(_TIMELINE_PARTS)]
    steps = zip(
        record.step_start_s, record.step_seconds, record.num_running, record.num_waiting, record.used_blocks,
        record.step_tokens, strict=True,
    )  # fmt: skip
    for begin, step_s, running, waiting, used, tokens in steps:
        for part, part_s in _parts_of(begin - start_s, step_s, width):
            cell = sums[part]
            cell[0] += running * part_s
            cell[1] += waiting * part_s
            cell[2] += used * part_s
            cell[3] += tokens * (part_s / step_s)
    for number, cell in enumerate(sums):
        yield Moment(start_s + number * width, width, *(value / width for value in cell))


def _parts_of(begin: float, seconds: float, width: float) -> Iterator[tuple[int, float]]:
    """(part, seconds in it) of what runs from `begin` for `seconds`."""
    last = _TIMELINE_PARTS - 1
    part, end = min(last, int(begin / width)), begin + seconds
    while part < last and (edge := (part + 1) * width) < end:
        yield part, edge - begin
        part, begin = part + 1, edge
    yield part, end - begin
