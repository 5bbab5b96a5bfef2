"""Prices on data sheets: sums equal their parts, more work takes longer, more devices help, and units hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.backends.price.efficiency import CONSTANTS, EXPECTED, IDEAL
from kvwise.backends.price.engines import ENGINES
from kvwise.backends.price.kernels import KernelKind
from kvwise.backends.price.roofline import RooflinePricer
from kvwise.errors import NotMeasured, UsageError
from kvwise.models import build_program
from kvwise.program.shard import shard_program
from kvwise.spec.shape import StepShape
from price.models import LLAMA_8B, QWEN3_32B, pricer_of
from program.families import SPECS
from program.test_special_cost import SPECS as SPECIAL

FAMILIES = {**SPECS, **SPECIAL}
PRICERS = {name: pricer_of(LLAMA_8B, engine=name) for name in ENGINES}
WIDE = {n: pricer_of(LLAMA_8B, f"h100:{n}") for n in (1, 2, 4, 8)}
SHAPES = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 5000)), min_size=1, max_size=12).map(
    lambda pairs: StepShape(tuple(q for q, _ in pairs), tuple(q + n for q, n in pairs), len(pairs))
)


def grown(shape: StepShape, *, queries: int = 0, contexts: int = 0, requests: int = 0) -> StepShape:
    q = (shape.queries[0] + queries, *shape.queries[1:], *(1,) * requests)
    n = (shape.contexts[0] + queries + contexts, *shape.contexts[1:], *(100,) * requests)
    return StepShape(q, n, len(q))


@given(SHAPES, st.sampled_from(sorted(PRICERS)))
def test_a_step_is_the_sum_of_its_parts_and_both_readings_agree(shape: StepShape, engine: str) -> None:
    pricer = PRICERS[engine]
    price = pricer.price(shape)
    assert price.predicted_seconds == pytest.approx(sum(p.seconds for p in price.parts) + price.overhead_s)
    assert price.predicted_seconds == pytest.approx(pricer.seconds(shape))
    assert price.cost.flops == sum(p.cost.flops for p in price.parts)
    assert price.cost.moved_bytes == sum(p.cost.moved_bytes for p in price.parts)
    for part in price.parts:
        assert min(part.memory_s, part.arithmetic_s, part.fixed_s) >= 0
        assert part.seconds >= max(part.memory_s, part.arithmetic_s) > 0
        assert part.seconds <= (part.memory_s + part.arithmetic_s + part.fixed_s) * (1 + 1e-9)


@given(SHAPES, st.sampled_from(sorted(PRICERS)))
def test_more_work_never_takes_less(shape: StepShape, engine: str) -> None:
    pricer = PRICERS[engine]
    seconds = pricer.seconds(shape)
    assert seconds > 0
    assert pricer.seconds(grown(shape, contexts=500)) >= seconds
    if shape.queries[0] > 1:  # a request of one token is a decode: another kernel
        assert pricer.seconds(grown(shape, queries=50)) >= seconds * (1 - 1e-9)
    assert pricer.seconds(grown(shape, requests=1)) >= seconds * (1 - 1e-9)


@given(st.integers(1, 256), st.integers(1, 8000))
def test_weights_and_kv_read_by_more_devices_take_less(batch: int, context: int) -> None:
    shape = StepShape.decode(context, batch)
    memory_s = [WIDE[n].price(shape).part(KernelKind.MATMUL).memory_s for n in WIDE]  # type: ignore[union-attr]
    assert memory_s == sorted(memory_s, reverse=True)
    attention_s = [WIDE[n].price(shape).part(KernelKind.ATTENTION).memory_s for n in WIDE]  # type: ignore[union-attr]
    assert attention_s == sorted(attention_s, reverse=True)


def test_without_an_engine_decode_takes_its_bytes_over_the_bandwidth() -> None:
    pricer = PRICERS["roofline"]
    price = pricer.price(StepShape.decode(1000, 1))
    weights = 2 * (8_030_261_248 - 128256 * 4096)  # all but the embedding, of which one row is read
    assert price.overhead_s == 0
    matmul = price.part(KernelKind.MATMUL)
    assert matmul is not None
    assert matmul.memory_s == pytest.approx(weights / 3.35e12, rel=1e-3)
    assert price.bound == "memory"


def test_without_an_engine_a_long_prompt_takes_its_flops_over_the_peak() -> None:
    price = PRICERS["roofline"].price(StepShape.prefill(4096))
    matmul = price.part(KernelKind.MATMUL)
    assert matmul is not None
    head_s = 2 * 128256 * 4096 / 3.35e12  # for one row: read
    assert matmul.seconds == pytest.approx(2 * 4096 * (8_030_261_248 - 2 * 128256 * 4096) / 989.4e12 + head_s, rel=1e-3)
    assert price.bound == "arithmetic"


def test_what_an_engine_costs_is_beside_the_bare_roofline() -> None:
    shape = StepShape.decode(2000, 16)
    bare = PRICERS["roofline"].seconds(shape)
    assert all(PRICERS[name].seconds(shape) > bare for name in ("vllm", "trtllm", "sglang"))


def of(device: str, weights: str) -> RooflinePricer:
    return pricer_of(LLAMA_8B, device, "roofline", weights=weights)


def test_8_bit_weights_are_read_in_half_the_time_and_multiplied_in_8_bits_where_there_are() -> None:
    shape = StepShape.decode(10, 1)
    wide, narrow = (of("h100", w).price(shape) for w in ("bf16", "fp8"))
    assert narrow.predicted_seconds == pytest.approx(wide.predicted_seconds / 2, rel=0.01)
    prompt = StepShape.prefill(8192)
    on_h100, on_a100 = (
        [
            pricer_of(LLAMA_8B, device, "roofline", weights=w).price(prompt).part(KernelKind.MATMUL)
            for w in ("bf16", "fp8")
        ]
        for device in ("h100", "a100")
    )
    assert on_h100[1].arithmetic_s == pytest.approx(on_h100[0].arithmetic_s / 2, rel=1e-2)  # type: ignore[union-attr]
    assert on_a100[1].arithmetic_s == pytest.approx(on_a100[0].arithmetic_s, rel=1e-2)  # type: ignore[union-attr]
    forced = pricer_of(LLAMA_8B, engine="roofline", weights="fp8", compute="bf16").price(prompt).part(KernelKind.MATMUL)
    assert forced is not None
    assert forced.arithmetic_s == pytest.approx(on_h100[0].arithmetic_s, rel=1e-2)  # type: ignore[union-attr]


def test_a_step_with_prompts_takes_no_less_than_its_launches() -> None:
    pricer = pricer_of(LLAMA_8B, "h100:8", "trtllm")
    short, shorter = (pricer.price(StepShape.prefill(n)) for n in (64, 8))
    assert short.bound == "fixed"
    assert short.predicted_seconds == pytest.approx(shorter.predicted_seconds)


def test_stages_hand_on_what_the_next_one_needs() -> None:
    one, two = (pricer_of(QWEN3_32B, placement, "roofline") for placement in ("h100", "h100:pp2"))
    shape = StepShape.decode(1000, 8)
    assert len(two.stages) == 2
    assert two.seconds(shape) == pytest.approx(one.seconds(shape), rel=1e-3)  # a token passes both
    assert pricer_of(QWEN3_32B, "h100:pp2").price(shape).part(KernelKind.COLLECTIVE) is not None


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_family_has_a_price_on_a_data_sheet(name: str, ranks: int) -> None:
    from kvwise.hardware.devices import Placement, find_device
    from kvwise.planner.pricing import roofline_pricer
    from kvwise.planner.sizes import stored_bytes, uniform_types, weight_type
    from kvwise.spec.kv import KVCacheSpec

    program = build_program(FAMILIES[name])
    try:
        shard_program(program, ranks)
    except UsageError:
        pytest.skip("can't be split evenly")
    types = uniform_types(program, weight_type("bf16"))
    pricer = roofline_pricer(
        program, types, stored_bytes(program, types), KVCacheSpec.of(FAMILIES[name]),
        Placement(find_device("a100"), ranks), ENGINES["vllm"],
    )  # fmt: skip
    for shape in (StepShape.decode(300, 4), StepShape.prefill(100), StepShape((1, 1, 40), (30, 20, 90), 3)):
        assert pricer.price(shape).predicted_seconds == pytest.approx(pricer.seconds(shape))
        assert pricer.seconds(shape) > 0


def test_a_device_without_a_figure_is_refused_by_name() -> None:
    pricer = pricer_of(LLAMA_8B, "this")
    with pytest.raises(NotMeasured, match="this: not known"):
        pricer.price(StepShape.decode(1, 1))


def test_every_constant_lies_in_its_range_and_says_where_it_is_from() -> None:
    assert set(IDEAL.__dataclass_fields__) == set(CONSTANTS)
    for name, constant in CONSTANTS.items():
        assert constant.low <= constant.value <= constant.high, name
        assert constant.reason, name
        assert constant.source, name
        assert getattr(EXPECTED, name) == constant.value


def test_prices_of_sizes_seen_before_are_kept_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvwise.backends.price.roofline._KEPT_SIZES", 2)
    pricer = pricer_of(LLAMA_8B)
    first = [pricer.seconds(StepShape.decode(10, n)) for n in (1, 2, 3, 1, 2, 3)]
    assert first[:3] == first[3:]
    assert isinstance(pricer, RooflinePricer)
    assert len(pricer._by_size) <= 2
