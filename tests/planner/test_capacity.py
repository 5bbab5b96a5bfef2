"""A plan as an engine on the virtual clock: its pool is what its machine has left, and more of anything serves more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvwise.errors import DoesNotFit, InputError, NotMeasured, UsageError
from kvwise.planner.capacity import Deployment, deploy, measure_capacity
from kvwise.planner.memory import plan
from kvwise.planner.policy import KVWISE
from kvwise.planner.presets import PRESETS
from kvwise.planner.simulation.asked import Asked
from kvwise.planner.simulation.load import closed_load, fixed_sizes
from kvwise.planner.simulation.results import summarize
from kvwise.planner.simulation.slo import Slo
from kvwise.scheduler import POLICIES
from kvwise.spec.shape import StepShape
from kvwise.units import GiB

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 4096,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip


def on(place: str = "a10g", **options: Any) -> Deployment:
    return deploy(CONFIG, on=place, **options)


def fits(deployment: Deployment, num_blocks: int) -> bool:
    """By the planner, for as many blocks as requests of one block each."""
    limits, planned = deployment.setup.limits, deployment.plan
    assert planned.placed is not None
    block = deployment.setup.block_tokens
    stage = planned.placed.fullest
    pool = num_blocks * block * planned.kv.bytes_per_token
    total = stage.total_bytes - stage.row("kv_pool") + pool
    assert limits.max_requests == planned.batch
    return total + planned.placed.policy.reserve(total) <= stage.budget_bytes


def test_the_pool_is_the_largest_that_fits() -> None:
    deployment = on()
    assert fits(deployment, deployment.setup.num_blocks)
    assert not fits(deployment, deployment.setup.num_blocks + 1)


def test_requests_that_the_plan_says_fit_have_their_blocks() -> None:
    """One mechanism: as many requests as plan() has room for have room in the pool."""
    for context in (512, 4096):
        room = plan(CONFIG, on="a10g", context=context, batch=KVWISE.max_requests).placed
        assert room is not None
        pool = on(context=context, step_tokens=512).setup.num_blocks
        assert pool // (context // 16) == pytest.approx(room.max_requests, rel=0.03)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"kv_dtype": "f16"}, {"kv_dtype": "q8_0"}),
        ({"weights": "bf16"}, {"weights": "q4_0"}),
        ({"memory_limit": 8 * GiB}, {"memory_limit": 9 * GiB}),
        ({"place": "a10g"}, {"place": "a10g:2"}),
        ({"place": "a10g"}, {"place": "h100"}),
    ],
)
def test_more_room_is_a_larger_pool(less: dict[str, Any], more: dict[str, Any]) -> None:
    assert on(**less).setup.num_blocks < on(**more).setup.num_blocks


def test_weights_that_do_not_fit_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(DoesNotFit, match=r"1 x A10G needs .* beside K and V; expected less than 2 GiB"):
        on(memory_limit=2 * GiB)


def test_limits_are_the_engines_unless_asked_otherwise() -> None:
    assert on().setup.limits.max_tokens == 8192
    limits = on(step_tokens=512, max_requests=7, context=100).setup.limits
    assert (limits.max_tokens, limits.max_requests, limits.max_logits_rows, limits.max_context) == (512, 7, 7, 100)
    assert on(step_tokens=4, max_requests=8).setup.limits.max_tokens == 8, "a decode of each request fits a step"


@pytest.mark.parametrize("bad", [{"max_requests": 0}, {"step_tokens": 0}, {"place": "abacus"}, {"engine": "steam"}])
def test_what_can_not_be_deployed_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        on(**bad)


def asked(rate: float | None = None, concurrency: int | None = None, lengths: str = "200:60") -> Asked:
    return Asked.of(rate, concurrency, None, lengths, 80, seed=1)


def test_a_faster_device_is_faster_under_the_same_load() -> None:
    means = []
    for place in ("a10g", "a100", "h100"):
        summary = measure_capacity(on(place), asked(rate=20.0)).summary
        assert summary is not None
        ttft, tpot = summary.latencies["ttft"], summary.latencies["tpot"]
        assert ttft is not None
        assert tpot is not None
        means.append((ttft.mean, tpot.mean))
    assert means == sorted(means, reverse=True)


def test_one_request_at_a_time_takes_what_the_planner_predicts() -> None:
    """The simulation and the steady state are two roads to one number."""
    deployment = on(context=260)
    predicted = plan(CONFIG, on="a10g", context=260, output_tokens=60).latency
    assert predicted is not None
    assert predicted.tpot_s is not None
    summary = summarize(deployment.serve(asked(concurrency=1, lengths="200:60").at(1)))
    ttft, tpot = summary.latencies["ttft"], summary.latencies["tpot"]
    assert ttft is not None
    assert tpot is not None
    assert ttft.mean == pytest.approx(predicted.ttft_s.value, rel=1e-6)
    assert tpot.mean == pytest.approx(predicted.tpot_s.value, rel=1e-3)


def test_a_load_is_judged_and_the_highest_found() -> None:
    capacity = measure_capacity(on(), asked(rate=2.0), Slo.parse("ttft=500ms,tpot=50ms"))
    assert capacity.verdict is not None
    assert capacity.verdict.kept
    assert capacity.search is not None
    assert capacity.search.best is not None
    assert capacity.search.best > 2.0
    closed = measure_capacity(on(), asked(concurrency=2), Slo.parse("tpot=20ms"))
    assert closed.search is not None
    assert closed.search.unit == "requests at a time"


@pytest.mark.parametrize(
    ("rate", "concurrency", "lengths", "requests"),
    [(1.0, 1, "1:1", 1), (0.0, None, "1:1", 1), (-1.0, None, "1:1", 1), (float("nan"), None, "1:1", 1),
     (None, 0, "1:1", 1), (1.0, None, "long", 1), (1.0, None, "0:4", 1), (1.0, None, "4:0", 1), (1.0, None, "1:1", 0)],
)  # fmt: skip
def test_loads_that_can_not_be_are_refused(
    rate: float | None, concurrency: int | None, lengths: str, requests: int
) -> None:
    with pytest.raises(InputError):
        Asked.of(rate, concurrency, None, lengths, requests, seed=0)


class Every:
    """A machine on which each token takes as long."""

    def seconds(self, shape: StepShape) -> float:
        return 1e-3 * shape.num_tokens


def test_on_this_machine_the_pool_is_the_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvwise.planner.capacity.machine_pricer", lambda memory: Every())
    roomy = on("this", context=512)
    assert roomy.setup.num_blocks == roomy.setup.limits.max_requests * 512 // 16
    assert (roomy.setup.limits.max_tokens, roomy.setup.limits.max_context) == (512, 512)
    memory = roomy.plan.memory
    assert memory is not None
    tight = on("this", context=512, memory_limit=memory.total_bytes - memory.needs.kv_pool_bytes // 2)
    assert 512 // 16 <= tight.setup.num_blocks < roomy.setup.num_blocks
    record = tight.serve(closed_load(fixed_sizes(100, 11, 3), 1))
    assert [served.tpot_s for served in record.requests] == pytest.approx([1e-3] * 3)


def test_a_machine_that_was_never_measured_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVWISE_CACHE", str(tmp_path))
    with pytest.raises(NotMeasured):
        on("this", context=512)


def test_an_engine_schedules_as_it_does() -> None:
    assert on(engine="vllm").to_json()["scheduling"] == "fcfs"
    assert on(engine="sglang").setup.limits.max_requests == KVWISE.max_requests
    apart = on(policy_of=PRESETS["sglang"])
    assert apart.to_json()["scheduling"] == "prompts_first"
    assert apart.setup.policy is POLICIES["prompts_first"]
    assert apart.setup.limits.max_requests == 2048
    assert apart.setup.block_tokens == 16, "blocks of one token are kept as blocks of 16"


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_can_be_simulated(name: str) -> None:
    deployment = on("h100", policy_of=PRESETS[name])
    assert deployment.setup.limits.max_requests == PRESETS[name](deployment.placement).max_requests
    record = deployment.serve(asked(rate=5.0).at(5.0))
    assert len(record.requests) == 80
