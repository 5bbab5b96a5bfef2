"""Sums of a simulation: percentiles that occurred, rates and shares that add up, an answer to an SLO that holds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwise.errors import UsageError
from kvwise.planner.simulation.clock import PricedSteps
from kvwise.planner.simulation.lengths import AZURE_CONVERSATIONS
from kvwise.planner.simulation.load import (
    Load,
    RequestSize,
    closed_load,
    drawn_sizes,
    fixed_sizes,
    poisson_load,
    stretched,
)
from kvwise.planner.simulation.record import Record
from kvwise.planner.simulation.results import Distribution, percentile_of, summarize
from kvwise.planner.simulation.simulate import EngineSetup, simulate
from kvwise.planner.simulation.slo import TOLERANCE, Search, Slo, find_highest_concurrency, find_highest_rate
from kvwise.spec.shape import StepLimits
from planner.simulation.loads import loads, price, setups

TIMES = PricedSteps(price)
SETUP = EngineSetup(2000, StepLimits(256, 16, 16, 4000))
VALUES = st.lists(st.integers(0, 9), min_size=1, max_size=40)


@given(VALUES, st.sampled_from((1, 50, 90, 99, 99.9, 100)))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(values: list[int], percentile: float) -> None:
    value = percentile_of(((v, 1) for v in values), percentile)
    assert value in values
    assert sum(v <= value for v in values) >= len(values) * percentile / 100
    assert sum(v < value for v in values) < len(values) * percentile / 100


@given(VALUES)
def test_values_that_occur_several_times_count_as_often(values: list[int]) -> None:
    counted = [(v, values.count(v)) for v in set(values)]
    assert Distribution.weighted(counted) == Distribution.of(values)


def test_one_in_a_thousand_does_not_round_up() -> None:
    assert percentile_of(((n, 1) for n in range(1, 1001)), 99.9) == 999


@settings(max_examples=60, deadline=None)
@given(loads(), setups())
def test_sums_equal_their_parts(load: Load, setup: EngineSetup) -> None:
    record = simulate(load, setup, TIMES)
    summary = summarize(record)
    json.dumps(summary.to_json(), allow_nan=False)
    assert summary.num_served + len(record.refusals) == summary.num_requests == len(load.sizes)
    if not record.requests:
        assert summary.latencies["ttft"] is None
        return
    assert 0 < summary.cache_mean <= summary.cache_peak * (1 + 1e-9) <= 1 + 1e-9
    assert 0 < summary.busy <= 1 + 1e-9
    assert summary.requests_per_s * summary.seconds == pytest.approx(summary.num_served)
    outputs = sum(served.output_tokens for served in record.requests)
    assert summary.output_tokens_per_s * summary.seconds == pytest.approx(outputs)
    parts = summary.timeline
    assert sum(p.running * p.seconds for p in parts) == pytest.approx(summary.running_mean * summary.seconds)
    assert sum(p.tokens_per_s * p.seconds for p in parts) == pytest.approx(sum(record.step_tokens))
    used = sum(p.used_blocks * p.seconds for p in parts) / setup.num_blocks
    assert used == pytest.approx(summary.cache_mean * summary.seconds)


@settings(max_examples=40, deadline=None)
@given(loads(), setups())
def test_a_response_is_its_first_token_and_its_intervals(load: Load, setup: EngineSetup) -> None:
    for served in simulate(load, setup, TIMES).requests:
        ttft, e2e = served.first_token_s - served.arrival_s, served.end_s - served.arrival_s
        assert ttft + (served.output_tokens - 1) * (served.tpot_s or 0.0) == pytest.approx(e2e)


def at_rate(rate: float) -> Record:
    return simulate(poisson_load(SIZES, rate, seed=3), SETUP, TIMES)


SIZES = drawn_sizes(AZURE_CONVERSATIONS, 40, seed=5)


def test_more_requests_a_second_wait_longer_on_the_same_draws() -> None:
    waits = []
    for rate in (0.1, 1, 4, 16, 64):
        queueing = summarize(at_rate(rate)).latencies["queueing"]
        assert queueing is not None
        waits.append(queueing.mean)
    assert waits == sorted(waits)
    assert waits[-1] > 10 * waits[0]


def test_rates_differ_only_in_how_far_their_times_are_stretched() -> None:
    slow, fast = poisson_load(SIZES, 2.0, seed=1), poisson_load(SIZES, 8.0, seed=1)
    assert slow.sizes == fast.sizes
    assert slow.arrivals_s is not None
    assert fast.arrivals_s == pytest.approx([time / 4 for time in slow.arrivals_s])
    assert stretched(slow, 4.0).rate == pytest.approx(4.0)
    gaps = poisson_load(fixed_sizes(1, 1, 4000), 5.0).arrivals_s
    assert gaps is not None
    assert gaps[-1] / 4000 == pytest.approx(1 / 5.0, rel=0.05)


def test_an_slo_is_read_from_text() -> None:
    slo = Slo.parse("ttft=1s, TPOT=50ms,e2e=1.5m", 90)
    assert slo.limits == pytest.approx({"ttft": 1.0, "tpot": 0.05, "e2e": 90.0})
    assert slo.percentile == 90


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=1", "ttft=-1s", "ttft=1s,ttft=2s", "speed=1s", "ttft=0s", "ttft=1h"]
)
def test_an_slo_that_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected limits such as ttft=1s,tpot=50ms"):
        Slo.parse(text)


@pytest.mark.parametrize("percentile", [0, -1, 100.5, float("nan")])
def test_a_percentile_that_is_none_is_refused(percentile: float) -> None:
    with pytest.raises(UsageError, match="percentile"):
        Slo.parse("ttft=1s", percentile)


@pytest.mark.parametrize("text", ["ttft=600ms", "tpot=8ms", "ttft=800ms,tpot=9ms", "itl=30ms", "e2e=2s"])
def test_the_rate_found_keeps_the_slo_and_a_little_more_misses_it(text: str) -> None:
    slo = Slo.parse(text, 95)
    search = find_highest_rate(at_rate, slo, start=1.0)
    assert search.best is not None
    assert search.ceiling is not None
    assert search.best < search.ceiling <= search.best * (1 + TOLERANCE)
    assert slo.judge(at_rate(search.best)).kept
    assert not slo.judge(at_rate(search.ceiling)).kept
    check_evidence(search)


def check_evidence(search: Search) -> None:
    assert [trial.load for trial in search.trials] == sorted(trial.load for trial in search.trials)
    for trial in search.trials:
        if search.best is not None and trial.load <= search.best:
            assert trial.verdict.kept
        limits = search.slo.limits
        assert trial.verdict.kept == all((v or 0) <= limits[name] for name, v in trial.verdict.observed.items())
        assert trial.verdict.goodput <= trial.requests_per_s


def test_a_tighter_slo_never_allows_more() -> None:
    found = [find_highest_rate(at_rate, Slo.parse(f"ttft={ms}ms", 90), start=1.0).best or 0 for ms in (350, 500, 900)]
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_an_slo_that_not_even_one_request_alone_keeps_has_no_rate() -> None:
    search = find_highest_rate(at_rate, Slo.parse("ttft=1us"), start=1.0)
    assert search.best is None
    assert len(search.trials) == 2


def test_an_slo_that_any_load_keeps_has_no_ceiling() -> None:
    search = find_highest_rate(at_rate, Slo.parse("ttft=9999s"), start=1.0)
    assert search.ceiling is None
    assert search.best is not None


def at_concurrency(concurrency: float) -> Record:
    return simulate(closed_load(SIZES, int(concurrency)), SETUP, TIMES)


@pytest.mark.parametrize("ms", [5, 8, 20])
def test_the_concurrency_found_is_the_largest(ms: int) -> None:
    slo = Slo.parse(f"tpot={ms}ms", 90)
    search = find_highest_concurrency(at_concurrency, slo, most=40)
    assert search.best is not None
    if search.ceiling is not None:
        assert search.ceiling == search.best + 1
        assert not slo.judge(at_concurrency(search.ceiling)).kept
    else:
        assert search.best == 40
    check_evidence(search)


def test_nothing_served_is_no_evidence() -> None:
    record = simulate(closed_load((RequestSize(5000, 5),), 1), SETUP, TIMES)
    with pytest.raises(UsageError, match="no request of this load is served"):
        Slo.parse("ttft=1s").judge(record)
