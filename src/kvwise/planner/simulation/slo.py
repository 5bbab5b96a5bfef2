"""Service level objectives: what a request may take, whether a load keeps it, and the highest load that does.

An SLO is kept when each of its latencies is within its limit for `percentile` % of the served requests: 99 unless
asked otherwise, as MLPerf Inference holds servers to (its Server scenario bounds the 99th percentiles of TTFT and
TPOT). Goodput, the rate of requests that keep all limits at once (Zhong et al., DistServe, OSDI 2024), is beside it.

A finite run of requests that come faster than they are served can end before its queue is long: it misses whatever its
percentiles are, for they would be others had it gone on. Requests under way that grow
while the second half comes, by more than a tenth of it and more than chance makes of a steady number, are an overload.

The search tries the same requests at different rates (load.py: common random numbers), first further and further
apart, then by bisection. What it answers is the highest rate tried that keeps the SLO and below which every rate tried
keeps it; the trials are its evidence.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from kvwise.errors import UsageError
from kvwise.planner.simulation.record import Record, Served
from kvwise.planner.simulation.results import LATENCIES, percentile_of
from kvwise.planner.target import parse_limits

DEFAULT_PERCENTILE: Final = 99.0
_OVERLOAD: Final = 0.1
TOLERANCE: Final = 0.02  # of the rate found; a tenth of what 1,000 requests' luck makes of p99
_MAX_DOUBLINGS: Final = 40


@dataclass(frozen=True, slots=True)
class Slo:
    """limits: seconds by "ttft", "tpot", "e2e", "queueing" or "itl"."""

    limits: Mapping[str, float]
    percentile: float = DEFAULT_PERCENTILE

    @classmethod
    def parse(cls, text: str, percentile: float = DEFAULT_PERCENTILE) -> Slo:
        """From 'ttft=1s,tpot=50ms'. Raises UsageError."""
        if not 0 < percentile <= 100:
            raise UsageError(f"percentile is {percentile:g}", expected="above 0, at most 100")
        return cls(parse_limits(text, _NAMES), percentile)

    def judge(self, record: Record) -> Verdict:
        """How `record` keeps it. Raises UsageError when nothing was served."""
        if not record.requests:
            raise UsageError("no request of this load is served", action="raise the context or take shorter requests")
        observed = {name: _observe(record, name, self.percentile) for name in self.limits}
        overloaded = _is_overloaded(record.requests)
        kept = not overloaded and all(v is None or v <= self.limits[name] for name, v in observed.items())
        num_good = sum(
            all(
                (value := LATENCIES[name](served)) is None or value <= limit
                for name, limit in self.limits.items()
                if name in LATENCIES
            )
            for served in record.requests
        )
        seconds = record.end_s - min(served.arrival_s for served in record.requests)
        return Verdict(kept, overloaded, observed, num_good / len(record.requests), num_good / seconds)


_NAMES: Final = (*LATENCIES, "itl")


@dataclass(frozen=True, slots=True)
class Verdict:
    """overloaded: requests come faster than they are served. observed: each limited latency at the SLO's percentile;
    None where no request has one.

    good_share: of the served requests, those that keep every limit by themselves (intervals aside); goodput: as many a
    second.
    """

    kept: bool
    overloaded: bool
    observed: Mapping[str, float | None]
    good_share: float
    goodput: float


def _is_overloaded(requests: Sequence[Served]) -> bool:
    """Whether requests under way grew while the second half came: by a tenth of it, and by more than chance.

    Where they come by chance their number under way in a steady state scatters by its root (M/G/inf).
    """
    arrivals = sorted(served.arrival_s for served in requests)
    ends = sorted(served.end_s for served in requests)
    middle, last = arrivals[len(arrivals) // 2], arrivals[-1]
    before, after = (bisect_right(arrivals, t) - bisect_right(ends, t) for t in (middle, last))
    came = len(arrivals) - bisect_right(arrivals, middle)
    return after - before > _OVERLOAD * came + 2 * math.sqrt(2 * before)


def _observe(record: Record, name: str, percentile: float) -> float | None:
    if name == "itl":
        pairs = zip(record.interval_s, record.interval_counts, strict=True)
        return percentile_of(pairs, percentile)
    values = (LATENCIES[name](served) for served in record.requests)
    return percentile_of(((value, 1) for value in values if value is not None), percentile)


@dataclass(frozen=True, slots=True)
class Trial:
    """A load that was simulated: requests/s offered, or requests at a time."""

    load: float
    verdict: Verdict
    requests_per_s: float
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Search:
    """best: the highest load that keeps the SLO; None where no load does. ceiling: the lowest that was seen to miss it.

    trials: ascending. `unit` says what a load is.
    """

    unit: str
    slo: Slo
    best: float | None
    ceiling: float | None
    trials: tuple[Trial, ...]

    def to_json(self) -> dict[str, object]:
        return asdict(self)


Attempt = Callable[[float], Record]
"""Simulates a load: requests/s, or requests at a time."""


def find_highest_rate(attempt: Attempt, slo: Slo, start: float) -> Search:
    """The highest rate that keeps `slo`, to TOLERANCE. start: requests/s of an engine that serves one at a time.

    Where `start` misses it, start / 64 is tried, for there requests hardly meet. A rate so high that all come at once
    ends the search.
    """
    trials: dict[float, Trial] = {}

    def keeps(rate: float) -> bool:
        trials[rate] = _try(attempt, slo, rate)
        return trials[rate].verdict.kept

    low = high = start
    if keeps(start):
        for _ in range(_MAX_DOUBLINGS):
            low, high = high, 2 * high
            if not keeps(high) or trials[high].requests_per_s < trials[low].requests_per_s * (1 + TOLERANCE):
                break  # missed, or offered more and served no more: all come at once
    else:
        low = start / 64
        if not keeps(low):
            return _answer("requests/s", slo, trials)
    while not trials[high].verdict.kept and high > low * (1 + TOLERANCE):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return _answer("requests/s", slo, trials)


def find_highest_concurrency(attempt: Attempt, slo: Slo, most: int) -> Search:
    """The most requests at a time, at most `most`, that keep `slo`, exactly."""
    trials: dict[float, Trial] = {}

    def keeps(concurrency: int) -> bool:
        trials[concurrency] = _try(attempt, slo, concurrency)
        return trials[concurrency].verdict.kept

    low, high = 0, 1
    while high <= most and keeps(high):
        low, high = high, min(2 * high, most) if high < most else most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return _answer("requests at a time", slo, trials)


def _try(attempt: Attempt, slo: Slo, load: float) -> Trial:
    record = attempt(load)
    verdict = slo.judge(record)
    seconds = record.end_s - min(served.arrival_s for served in record.requests)
    outputs = sum(served.output_tokens for served in record.requests)
    return Trial(load, verdict, len(record.requests) / seconds, outputs / seconds)


def _answer(unit: str, slo: Slo, trials: Mapping[float, Trial]) -> Search:
    ordered = tuple(trials[load] for load in sorted(trials))
    missed = next((i for i, trial in enumerate(ordered) if not trial.verdict.kept), len(ordered))
    best = ordered[missed - 1].load if missed else None
    ceiling = ordered[missed].load if missed < len(ordered) else None
    return Search(unit, slo, best, ceiling, ordered)
