"""Every counted family is priced on a measured machine: sums hold, more takes no less, each op by what it moves."""

from __future__ import annotations

import pytest

from kvwise.backends.price.kernels import KernelKind
from kvwise.backends.price.price import Pricer, stream_kinds
from kvwise.hardware.profile import DeviceProfile, StreamFigures
from kvwise.planner.sizes import stored_bytes, uniform_types
from kvwise.spec.dtypes import TENSOR_TYPES
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.shape import StepShape
from program.families import SPECS as DENSE
from program.test_special_cost import PROGRAMS, SPECS

SECONDS_PER_BYTE, OP_S, PASS_S, STEP_S, REQUEST_S, LOGIT_S = 1e-9, 1e-6, 3e-6, 1e-5, 2e-6, 1e-9
ROWS = ("add", "glu", "norm", "quantize", "rope")


def profile(kinds: list[str]) -> DeviceProfile:
    """A byte takes as long for up to two rows, and as many times longer for more; memory as long as a cache."""
    stream = StreamFigures(((1.0, ((1.0, SECONDS_PER_BYTE),)), (2.0, ((1.0, SECONDS_PER_BYTE),))))
    return DeviceProfile(
        "a device", 1, "made up", dict.fromkeys(kinds, stream), dict.fromkeys(ROWS, ((1e6, 1e-3),)),
        OP_S, PASS_S, STEP_S, REQUEST_S, LOGIT_S,
    )  # fmt: skip


def pricer(name: str) -> Pricer:
    program, spec = PROGRAMS[name], SPECS[name]
    types = uniform_types(program, TENSOR_TYPES["bf16"])
    kv = KVCacheSpec.of(spec)
    return Pricer(program, kv, stored_bytes(program, types), types, profile(stream_kinds(program, types, kv)))


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_step_is_the_sum_of_its_parts_and_of_what_every_step_costs(name: str) -> None:
    shape = StepShape((1, 4), (20, 50), 2)
    step = pricer(name).price(shape)
    program = PROGRAMS[name]
    overhead = STEP_S + REQUEST_S + LOGIT_S * 2 * program.slots[program.output].width
    assert step.overhead_s == pytest.approx(overhead)
    assert step.predicted_seconds == pytest.approx(overhead + sum(part.seconds for part in step.parts))
    assert step.predicted_seconds == pricer(name).seconds(shape)
    assert sum(part.fixed_s for part in step.parts) >= OP_S * len(program.ops)
    assert all(part.seconds >= max(part.memory_s, part.fixed_s) > 0 for part in step.parts)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_more_tokens_and_more_requests_take_no_less(name: str) -> None:
    seconds = pricer(name).seconds
    prefills = [seconds(StepShape.prefill(n)) for n in (1, 7, 64, 500)]
    batches = [seconds(StepShape.decode(40, n)) for n in (1, 3, 30)]
    assert prefills == sorted(prefills)
    assert batches == sorted(batches)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_one_row_takes_what_its_weights_take(name: str) -> None:
    part = pricer(name).price(StepShape.decode(1)).part(KernelKind.MATMUL)
    assert part is not None
    assert part.memory_s == pytest.approx(part.cost.weight_bytes * SECONDS_PER_BYTE)
    assert part.seconds == pytest.approx(part.memory_s + part.fixed_s)
    experts = pricer(name).price(StepShape.decode(1)).part(KernelKind.EXPERTS)
    if experts is not None:
        assert experts.memory_s == pytest.approx(experts.cost.weight_bytes * SECONDS_PER_BYTE)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_attention_of_one_token_takes_what_it_moves_times_its_queries(name: str) -> None:
    part = pricer(name).price(StepShape.decode(400)).part(KernelKind.ATTENTION)
    if part is None:
        pytest.skip("no attention")
    read = (part.cost.kv_read_bytes + part.cost.weight_bytes) * SECONDS_PER_BYTE
    stored = 3 * part.cost.kv_write_bytes * SECONDS_PER_BYTE  # as an op on rows
    assert part.memory_s == pytest.approx(read + stored)
    assert part.arithmetic_s >= read * (1 - 1e-9)
    assert part.seconds == pytest.approx(part.arithmetic_s + stored + part.fixed_s)


def test_matmuls_that_do_not_wait_for_each_other_are_one_pass() -> None:
    from kvwise.models import build_program

    program = build_program(DENSE["llama"])  # q k v | o | gate up | down, and the head
    types = uniform_types(program, TENSOR_TYPES["bf16"])
    kv = KVCacheSpec.of(DENSE["llama"])
    priced = Pricer(program, kv, stored_bytes(program, types), types, profile(stream_kinds(program, types, kv)))
    part = priced.price(StepShape.decode(10)).part(KernelKind.MATMUL)
    layers = len(DENSE["llama"].layers)
    assert part is not None
    assert part.count == 4 * layers + 1
    assert part.fixed_s == pytest.approx(part.count * PASS_S + (7 * layers + 1) * OP_S)


def test_decodes_lie_on_a_line_while_the_working_set_is_about_the_same() -> None:
    price = pricer("mixtral").seconds
    one, two, three = (price(StepShape.decode(n)) for n in (1000, 1001, 1002))
    assert three - two == pytest.approx(two - one, rel=1e-6)
