"""Prompts before decodes: never in one step, nobody is lost, first tokens come sooner."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kvwise.engine.queue import OpenStep
from kvwise.planner.simulation.load import Load, fixed_sizes, poisson_load
from kvwise.planner.simulation.results import summarize
from kvwise.planner.simulation.simulate import EngineSetup, simulate
from kvwise.scheduler import POLICIES, plan_step
from kvwise.spec.shape import StepLimits
from planner.simulation.loads import EveryStepPriced, loads, setups
from scheduler.test_toy_engine import Scene, scenes

PROMPTS_FIRST = POLICIES["prompts_first"]
TIMES = EveryStepPriced()


@settings(max_examples=300)
@given(scene=scenes(), more_requests=st.integers(0, 3), more_tokens=st.integers(0, 12))
def test_a_plan_gives_each_one_fate_and_mixes_no_decodes_with_prompts(
    scene: Scene, more_requests: int, more_tokens: int
) -> None:
    most = len(scene.running) + more_requests
    limits = StepLimits(most + more_tokens, most, most, max_context=100)
    plan = PROMPTS_FIRST(scene.running, scene.waiting, scene.cache, limits)
    fates = [*(e.request_id for e in plan.scheduled), *plan.preempted, *(b.request_id for b in plan.blocked)]
    assert len(set(fates)) == len(fates)
    assert {request.request_id for request in scene.running} <= set(fates)
    assert len({entry.kind for entry in plan.scheduled}) <= 1
    assert plan.num_scheduled_tokens <= limits.max_tokens
    if all(entry.kind == "decode" for entry in plan.scheduled):
        assert plan == plan_step(scene.running, scene.waiting, scene.cache, limits), "without prompts it is the same"


@settings(max_examples=100, deadline=None)
@given(loads(), setups())
def test_all_are_served_and_strides_change_nothing(load: Load, setup: EngineSetup) -> None:
    setup = replace(setup, policy=PROMPTS_FIRST)
    stepped, strode = simulate(load, setup, TIMES, strides=False), simulate(load, setup, TIMES)
    assert len(stepped.requests) + len(stepped.refusals) == len(load.sizes)
    assert strode.requests == stepped.requests
    assert strode.step_start_s == stepped.step_start_s
    assert strode.cache == stepped.cache
    assert strode.cache is not None
    assert strode.cache.used_blocks == 0


def test_first_tokens_come_sooner_and_gaps_are_longer_than_when_prompts_share_steps() -> None:
    setup = EngineSetup(4000, StepLimits(128, 32, 32, 4000))
    load = poisson_load(fixed_sizes(600, 30, 80), rate=8.0, seed=1)
    mixed, apart = (
        summarize(simulate(load, replace(setup, policy=policy), TIMES)).latencies
        for policy in (plan_step, PROMPTS_FIRST)
    )
    assert mixed["ttft"] is not None
    assert apart["ttft"] is not None
    assert apart["ttft"].mean < mixed["ttft"].mean
    assert mixed["itl"] is not None
    assert apart["itl"] is not None
    assert apart["itl"].max > mixed["itl"].max


def test_a_decode_that_waits_for_prompts_says_so() -> None:
    seen: set[str] = set()

    def observe(step: OpenStep, _seconds: float) -> None:
        seen.update(blocked.by for blocked in step.plan.blocked)

    load = poisson_load(fixed_sizes(600, 30, 20), rate=50.0, seed=1)
    setup = EngineSetup(4000, StepLimits(128, 32, 32, 4000), policy=PROMPTS_FIRST)
    simulate(load, setup, TIMES, observe=observe)
    assert "prompts" in seen
