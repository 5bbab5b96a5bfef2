"""Latency: points inside their intervals, sums that hold, more load that never helps a request, regimes that turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvwise
from kvwise.backends.price.engines import ENGINES
from kvwise.backends.price.kernels import KernelKind
from kvwise.errors import UsageError
from kvwise.ledger.host import HostMemory, MemoryLimit
from kvwise.planner.error_band import EXACT, datasheet_band
from kvwise.planner.latency import Latency, placed_latency, predict_latency, turning_batch
from kvwise.planner.shape import plan_shape
from kvwise.planner.steady_state import Workload, steady_state
from kvwise.spec.shape import StepShape
from kvwise.units import GiB
from price.models import LLAMA_8B, pricer_of

HOST = HostMemory(2048 * GiB, (MemoryLimit("MemAvailable", 2048 * GiB),))
PRICERS = {name: pricer_of(LLAMA_8B, engine=name) for name in ENGINES}
WORK = st.builds(Workload, st.integers(1, 6000), st.integers(1, 600), st.integers(1, 128))


def latency(work: Workload, engine: str = "vllm", placement: str = "h100") -> Latency:
    return placed_latency(pricer_of(LLAMA_8B, placement, engine), work, has_experts=False, turning=False)


@given(WORK, st.sampled_from(sorted(PRICERS)))
def test_points_lie_in_their_intervals_and_a_response_is_its_tokens(work: Workload, engine: str) -> None:
    found = placed_latency(PRICERS[engine], work, has_experts=False, turning=False)
    for estimate in (found.ttft_s, found.tpot_s, found.response_s, found.output_tokens_per_s):
        if estimate is not None:
            assert 0 < estimate.low <= estimate.value <= estimate.high
    per_token = 0.0 if found.tpot_s is None else found.tpot_s.value
    assert found.response_s.value == pytest.approx(found.ttft_s.value + (work.output_tokens - 1) * per_token)
    assert (found.tpot_s is None) is (work.output_tokens == 1)
    held = found.output_tokens_per_s.value * found.response_s.value
    assert held == pytest.approx(work.concurrency * work.output_tokens)


@given(WORK, st.sampled_from(sorted(PRICERS)))
def test_a_regime_s_shares_sum_to_the_step(work: Workload, engine: str) -> None:
    found = placed_latency(PRICERS[engine], work, has_experts=False, turning=False)
    for regime in (found.prefill, found.decode):
        assert sum(s.predicted_s for s in regime.shares) + regime.overhead_s == pytest.approx(regime.predicted_s)
        assert sum(s.share for s in regime.shares) <= 1 + 1e-9
        assert 0 <= regime.kv_read_share <= 1
        assert regime.arithmetic_intensity > 0


@given(WORK, st.sampled_from(sorted(PRICERS)))
def test_more_requests_or_a_longer_prompt_never_make_a_token_come_sooner(work: Workload, engine: str) -> None:
    def tpot(w: Workload) -> float:
        setup = ENGINES[engine]
        steady = steady_state(PRICERS[engine], w, step_tokens=8192, mixes_prefill=setup.mixes_prefill)
        return steady.tpot_s or steady.decode_step_s

    slack = 1.02  # prompts are whole: a step has two or three of them, not two and a half
    assert tpot(Workload(work.prompt_tokens + 500, work.output_tokens, work.concurrency)) * slack >= tpot(work)
    assert tpot(Workload(work.prompt_tokens, work.output_tokens, 2 * work.concurrency)) * slack >= tpot(work)


def test_one_request_on_an_idle_machine_waits_for_its_prompt_alone() -> None:
    pricer = PRICERS["vllm"]
    steady = steady_state(pricer, Workload(1000, 100), step_tokens=8192)
    assert steady.ttft_s == pytest.approx(pricer.seconds(StepShape.prefill(1000)))
    assert steady.tpot_s == pytest.approx(pricer.seconds(StepShape.decode(1050)))
    assert steady.waiting_s == 0


def test_a_prompt_longer_than_a_step_is_computed_in_several() -> None:
    pricer = PRICERS["roofline"]
    whole, cut = (steady_state(pricer, Workload(8000, 100), step_tokens=n).ttft_s for n in (8000, 1000))
    assert cut > whole  # weights are read once more for each step


def test_who_does_not_fit_the_cache_waits_for_a_response_to_end() -> None:
    pricer = PRICERS["vllm"]
    room = Workload(1000, 100, 32)
    crowded = Workload(1000, 100, 32, cache_tokens=8 * 1075)
    assert (room.running, crowded.running) == (32, 8)
    found = steady_state(pricer, crowded, step_tokens=8192)
    alone = steady_state(pricer, Workload(1000, 100, 8), step_tokens=8192)
    assert found.tpot_s == alone.tpot_s
    assert found.waiting_s == pytest.approx(3 * alone.e2e_s(100))
    assert found.ttft_s == pytest.approx(alone.ttft_s + found.waiting_s)


def test_prompts_first_put_the_wait_before_the_first_token_and_half_of_it_after() -> None:
    pricer = PRICERS["sglang"]
    work = Workload(1000, 100, 64)
    mixed, first = (steady_state(pricer, work, step_tokens=8192, mixes_prefill=m) for m in (True, False))
    assert first.ttft_s > mixed.ttft_s
    assert first.tpot_s is not None
    assert mixed.tpot_s is not None
    assert first.tpot_s < mixed.tpot_s


def test_products_turn_to_arithmetic_at_the_ridge_and_long_contexts_keep_the_step_at_memory() -> None:
    pricer = pricer_of(LLAMA_8B, "a10", "roofline")
    ridge = 125e12 / 600e9
    turned = turning_batch(pricer, 10, KernelKind.MATMUL)
    assert turned is not None
    assert ridge <= turned <= 1.15 * ridge  # 16-bit weights: 2 FLOP for 2 bytes; activations are read beside them
    at = {n: pricer.price(StepShape.decode(10, n)).part(KernelKind.MATMUL) for n in (turned - 1, turned)}
    assert [part is not None and part.arithmetic_s >= part.memory_s for part in at.values()] == [False, True]
    assert turning_batch(pricer, 8000) is None


def test_intervals_are_wider_where_nothing_was_compared() -> None:
    known, other = (datasheet_band(name, has_experts=False) for name in ("H100 SXM5 80GB", "A100 SXM4 80GB"))
    mixture = datasheet_band("H100 SXM5 80GB", has_experts=True)
    for wide in (other, mixture):
        assert wide.tpot[0] < known.tpot[0] < 1 < known.tpot[1] < wide.tpot[1]
    assert latency(Workload(100, 10), "roofline").interval_source == EXACT.source


def test_a_plan_on_devices_has_a_latency_and_its_json_is_plain() -> None:
    plan = kvwise.plan(LLAMA_8B, host=HOST, on="h100:2", context=2048, output_tokens=48, batch=4)
    assert plan.latency is not None
    assert (plan.latency.prompt_tokens, plan.latency.output_tokens, plan.latency.concurrency) == (2000, 48, 4)
    read = json.loads(json.dumps(plan.to_json()))["latency"]
    assert read["machine"] == "H100 SXM5 80GB:tp2"
    assert read["tpot_s"]["low"] <= read["tpot_s"]["value"] <= read["tpot_s"]["high"]
    assert read["decode"]["shares"][0]["kind"] == "matmul"


def test_a_plan_of_a_shape_on_devices_has_a_latency() -> None:
    plan = plan_shape(params=7e9, layers=32, kv_heads=8, head_dim=128, host=HOST, on="h100:2", batch=4)
    assert plan.latency is not None
    assert plan.latency.tpot_s is not None


@pytest.mark.parametrize(
    "asked",
    [{"on": "h100:3"}, {"on": "no such device"}, {"on": "h100", "engine": "no such engine"},
     {"on": "h100", "output_tokens": 4096, "context": 4096}, {"on": "h100", "output_tokens": 0}],
)  # fmt: skip
def test_what_can_not_be_placed_is_bad_usage(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        kvwise.plan(LLAMA_8B, host=HOST, **asked)


def test_without_a_device_and_a_measured_machine_nothing_is_said_of_latency(cache_dir: Path) -> None:
    found = kvwise.plan(LLAMA_8B, host=HOST)
    assert found.latency is None
    assert any("kvwise probe" in note for note in found.notes)


def test_the_band_scales_each_estimate() -> None:
    band = datasheet_band("H100 SXM5 80GB", has_experts=False)
    found = predict_latency(
        PRICERS["vllm"], Workload(100, 10, 8), machine="m", engine="e", step_tokens=512, band=band, turning=False
    )
    assert found.tpot_s is not None
    assert found.tpot_s.low == pytest.approx(found.tpot_s.value * band.tpot[0])
    assert found.ttft_s.high == pytest.approx(found.ttft_s.value * band.loaded_ttft[1])
