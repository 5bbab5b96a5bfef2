"""Every counted family is priced: seconds for each op, more for more, and each op by the limit that it meets."""

from __future__ import annotations

import pytest

from kvwise.backends.price.price import Pricer
from kvwise.hardware.profile import DeviceProfile, MatmulFigures
from kvwise.planner.sizes import stored_bytes, uniform_types
from kvwise.program.special import DeltaRule, Experts, Index, LatentAttention, StateSpace
from kvwise.spec.dtypes import TENSOR_TYPES
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.shape import StepShape
from program.test_special_cost import PROGRAMS, SPECS

BANDWIDTH, FLOPS = 1e9, 1e12
OP_S, PASS_S = 1e-6, 3e-6


def pricer(name: str) -> Pricer:
    program = PROGRAMS[name]
    types = uniform_types(program, TENSOR_TYPES["bf16"])
    figures = {kind: MatmulFigures(((1, BANDWIDTH),), FLOPS) for kind in ("bf16", "bf16*q8")}
    profile = DeviceProfile("a device", 1, "made up", figures, BANDWIDTH, FLOPS, BANDWIDTH, OP_S, 1e-5, PASS_S)
    return Pricer(program, KVCacheSpec.of(SPECS[name]), stored_bytes(program, types), types, profile)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_step_is_the_sum_of_its_ops_and_of_what_every_step_costs(name: str) -> None:
    step = pricer(name).price(StepShape((1, 4), (20, 50), 2))
    assert step.predicted_seconds == pytest.approx(1e-5 + sum(op.seconds for op in step.ops))
    assert all(op.seconds >= 1e-6 for op in step.ops)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_more_tokens_and_more_requests_take_no_less(name: str) -> None:
    price = pricer(name).price
    prefills = [price(StepShape.prefill(n)).predicted_seconds for n in (1, 7, 64, 500)]
    batches = [price(StepShape.decode(40, n)).predicted_seconds for n in (1, 3, 30)]
    assert prefills == sorted(prefills)
    assert batches == sorted(batches)


@pytest.mark.parametrize(
    ("name", "kind", "moved"),
    [
        ("mixtral", Experts, lambda cost: cost.weight_bytes),
        ("deepseek_v2", LatentAttention, lambda cost: cost.kv_read_bytes + cost.kv_write_bytes + cost.weight_bytes),
        ("deepseek_v32", Index, lambda cost: cost.kv_read_bytes + cost.kv_write_bytes),
        ("qwen3_next", DeltaRule, lambda cost: cost.state_bytes + cost.activation_bytes),
        ("nemotron_h", StateSpace, lambda cost: cost.state_bytes + cost.activation_bytes),
    ],
)
def test_a_decode_step_takes_what_its_bytes_take(name: str, kind: type, moved: object) -> None:
    assert callable(moved)
    ops = [op for op in pricer(name).price(StepShape.decode(40)).ops if isinstance(op.op, kind)]
    assert ops
    for op in ops:
        assert op.bound == "memory"
        assert op.seconds == pytest.approx(OP_S + PASS_S + moved(op.cost) / BANDWIDTH)


def test_matmuls_in_a_row_pay_for_one_pass_over_the_threads() -> None:
    priced = pricer("mixtral").price(StepShape.decode(40)).ops
    q, k, v = (next(p for p in priced if p.op.out == f"layers.0.{name}") for name in "qkv")
    for op, fixed in ((q, OP_S + PASS_S), (k, OP_S), (v, OP_S)):
        assert op.seconds == pytest.approx(fixed + op.cost.weight_bytes / BANDWIDTH)
