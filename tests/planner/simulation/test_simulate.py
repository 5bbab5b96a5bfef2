"""The simulation decides as the engine does, step for step; strides change nothing; nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings

from kvwise.engine.queue import OpenStep
from kvwise.errors import BackendError, UsageError
from kvwise.planner.simulation.load import Load, RequestSize, closed_load, fixed_sizes
from kvwise.planner.simulation.record import Record
from kvwise.planner.simulation.simulate import EngineSetup, simulate
from kvwise.spec.shape import StepLimits, StepShape
from planner.simulation.loads import EveryStepPriced, loads, price, setups
from planner.simulation.real_engine import Decision, RealEngine, decision

TIMES = EveryStepPriced()
ROOMY = EngineSetup(1000, StepLimits(64, 8, 8, 2000))


@settings(max_examples=60, deadline=None)
@given(loads(), setups())
def test_every_step_is_the_engines_own(load: Load, setup: EngineSetup) -> None:
    decisions: list[Decision] = []

    def observe(step: OpenStep, seconds: float) -> None:
        assert seconds == price(step.shape)
        decisions.append(decision(step.plan))

    record = simulate(load, setup, TIMES, strides=False, observe=observe)
    real = RealEngine(load, setup)
    assert decisions == real.decisions
    assert [refusal.number for refusal in record.refusals] == real.refused
    assert {r.number: (r.first_token_s, r.end_s) for r in record.requests} == real.served
    cached = {r.number: r.num_cached_tokens for r in record.requests}
    assert cached == {int(name): output.num_cached_tokens for name, output in real.engine.outputs.items()}
    assert record.cache == real.engine.cache.stats()


@settings(max_examples=200, deadline=None)
@given(loads(), setups())
def test_strides_change_nothing(load: Load, setup: EngineSetup) -> None:
    stepped = simulate(load, setup, TIMES, strides=False)
    strode = simulate(load, setup, TIMES)
    assert strode.requests == stepped.requests
    assert strode.refusals == stepped.refusals
    assert strode.num_preemptions == stepped.num_preemptions
    assert strode.cache == stepped.cache
    for name in ("step_start_s", "step_seconds", "num_running", "num_waiting", "used_blocks", "step_tokens"):
        assert getattr(strode, name) == getattr(stepped, name), name
    assert intervals(strode) == intervals(stepped)


def intervals(record: Record) -> Counter[float]:
    counts: Counter[float] = Counter()
    for seconds, count in zip(record.interval_s, record.interval_counts, strict=True):
        counts[seconds] += count
    return counts


@settings(max_examples=100, deadline=None)
@given(loads(), setups())
def test_every_request_is_served_or_refused_and_nothing_is_lost(load: Load, setup: EngineSetup) -> None:
    record = simulate(load, setup, TIMES)
    fates = [r.number for r in record.requests] + [refusal.number for refusal in record.refusals]
    assert sorted(fates) == list(range(len(load.sizes)))
    assert all("tokens in the cache, which has room for" in refusal.reason for refusal in record.refusals)
    assert record.cache is not None
    assert record.cache.used_blocks == 0
    for served in record.requests:
        size = load.sizes[served.number]
        assert (served.prompt_tokens, served.output_tokens) == (size.prompt_tokens, size.output_tokens)
        assert served.arrival_s <= served.start_s < served.first_token_s <= served.end_s <= record.end_s
        assert (served.first_token_s == served.end_s) == (size.output_tokens == 1)
    once = sum(r.prompt_tokens - r.num_cached_tokens + r.output_tokens - 1 for r in record.requests)
    assert sum(record.step_tokens) == once if not record.num_preemptions else sum(record.step_tokens) > 0
    assert sum(record.interval_counts) == sum(r.output_tokens - 1 for r in record.requests)


@settings(max_examples=60, deadline=None)
@given(loads(), setups())
def test_steps_follow_each_other_and_stay_within_the_limits(load: Load, setup: EngineSetup) -> None:
    record = simulate(load, setup, TIMES)
    ends = [start + seconds for start, seconds in zip(record.step_start_s, record.step_seconds, strict=True)]
    assert all(later >= end for end, later in zip(ends, record.step_start_s[1:], strict=False))
    assert all(0 < n <= setup.limits.max_requests for n in record.num_running)
    assert all(0 < n <= setup.num_blocks for n in record.used_blocks)
    assert all(0 < n <= setup.limits.max_tokens for n in record.step_tokens)


def test_small_pools_do_preempt_share_and_refuse() -> None:
    """Without this the properties above could hold for want of trouble."""
    sizes = (*fixed_sizes(40, 120, 6), RequestSize(2000, 9), RequestSize(600, 3, (0,)), RequestSize(700, 3, (0,)))
    record = simulate(closed_load(sizes, 6), EngineSetup(50, StepLimits(64, 6, 6, 960)), TIMES)
    assert record.num_preemptions > 0
    assert len(record.refusals) == 1
    assert max(r.num_cached_tokens for r in record.requests) == 512


def test_one_request_alone_takes_its_steps_one_after_the_other() -> None:
    record = simulate(Load((RequestSize(100, 3),), (5.0,), None, "test"), ROOMY, TIMES)
    (served,) = record.requests
    chunks = price_of((64,), (64,), 0) + price_of((36,), (100,), 1)
    assert served.start_s == 5.0
    assert served.first_token_s == pytest.approx(5.0 + chunks)
    assert served.end_s == pytest.approx(5.0 + chunks + price_of((1,), (101,), 1) + price_of((1,), (102,), 1))


def price_of(queries: tuple[int, ...], contexts: tuple[int, ...], rows: int) -> float:
    return price(StepShape(queries, contexts, rows))


def test_a_request_that_comes_during_a_step_waits_for_its_end() -> None:
    load = Load(fixed_sizes(64, 40, 1) + fixed_sizes(10, 1, 1), (0.0, 0.0101), None, "test")
    first, second = sorted(simulate(load, ROOMY, TIMES).requests)
    assert first.first_token_s < 0.0101 < second.start_s < first.end_s
    assert second.start_s - 0.0101 < price_of((1,), (70,), 1)


def test_a_closed_loop_keeps_as_many_in_flight_as_it_says() -> None:
    record = simulate(closed_load(fixed_sizes(30, 20, 50), 5), ROOMY, TIMES)
    in_flight = [a + b for a, b in zip(record.num_running, record.num_waiting, strict=True)]
    assert set(in_flight[: len(in_flight) * 3 // 4]) == {5}


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_price_that_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(BackendError, match="priced at"):
        simulate(closed_load(fixed_sizes(5, 5, 1), 1), ROOMY, EveryStepPriced(lambda _: seconds))


def test_more_tokens_than_ids_are_refused() -> None:
    with pytest.raises(UsageError, match=r"2\*\*32"):
        simulate(closed_load(fixed_sizes(2**31 - 1, 1, 3), 1), ROOMY, TIMES)


def test_progress_counts_all_requests_served_or_refused() -> None:
    seen: list[tuple[int, int]] = []
    load = closed_load((*fixed_sizes(5, 5, 3), RequestSize(5000, 5)), 2)
    simulate(load, ROOMY, TIMES, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
