"""Step times without pricing each step: equal to pricing each, for every kind of layer that bends a price."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwise.backends.price.engines import ROOFLINE
from kvwise.hardware.devices import parse_placement
from kvwise.planner.pricing import roofline_pricer
from kvwise.planner.simulation.clock import NO_BENDS, Bends, Price, PricedSteps
from kvwise.planner.sizes import stored_bytes, uniform_types
from kvwise.spec.dtypes import TENSOR_TYPES
from kvwise.spec.kv import KV_TYPES, KVCacheSpec
from kvwise.spec.shape import StepShape
from program.families import PROGRAMS
from program.test_special_cost import PROGRAMS as COUNTED

CONTEXTS = st.lists(st.integers(1, 3000), min_size=1, max_size=6)


def roofline(shape: StepShape, seen: list[list[int]]) -> float:
    """A fixed cost and a kernel for each of `seen`: what every request reads in it, against a floor of arithmetic."""
    return 1e-3 + sum(max(1e-6 * sum(contexts), 2e-3 + 1e-7 * sum(contexts)) for contexts in seen)


def full(shape: StepShape) -> float:
    return roofline(shape, [list(shape.contexts)])


def windowed(shape: StepShape) -> float:
    return roofline(shape, [list(shape.contexts), [min(n, 128) for n in shape.contexts]])


def chunked(shape: StepShape) -> float:
    return roofline(shape, [list(shape.contexts), [(n - 1) % 200 + 1 for n in shape.contexts]])


def cached(shape: StepShape) -> float:
    """As `full`, with a bandwidth that falls as the working set grows out of a cache: curved, not a line."""
    return full(shape) + 1.0 / (2000.0 - min(sum(shape.contexts), 5000) / 10)


PRICES = [
    (full, NO_BENDS),
    (windowed, Bends(windows=frozenset({128}))),
    (chunked, Bends(chunks=frozenset({200}))),
    (cached, NO_BENDS),
]


@pytest.mark.parametrize(("price", "bends"), PRICES)
@settings(max_examples=60, deadline=None)
@given(contexts=CONTEXTS, num_steps=st.integers(1, 700))
def test_every_step_takes_what_it_would_be_priced_at(
    price: Price, bends: Bends, contexts: list[int], num_steps: int
) -> None:
    got = PricedSteps(price, bends).decode_seconds(contexts, num_steps)
    batch = len(contexts)
    want = [price(StepShape((1,) * batch, tuple(n + i for n in contexts), batch)) for i in range(num_steps)]
    assert got == pytest.approx(want, rel=1e-8)


def test_long_stretches_are_priced_a_few_times() -> None:
    asked: list[StepShape] = []

    def price(shape: StepShape) -> float:
        asked.append(shape)
        return full(shape)

    times = PricedSteps(price)
    for start in range(100, 900, 10):
        times.decode_seconds([start, start + 3], 200)
    assert len(asked) < 60


@pytest.mark.parametrize("name", sorted(PROGRAMS | COUNTED))
def test_the_bends_of_every_family_are_known(name: str) -> None:
    program = (PROGRAMS | COUNTED)[name]
    types = uniform_types(program, TENSOR_TYPES["bf16"])
    kv = KVCacheSpec(program.kv_layers, KV_TYPES["f16"], states=program.states)
    pricer = roofline_pricer(program, types, stored_bytes(program, types), kv, parse_placement("h100"), ROOFLINE)
    contexts = (3, 20, 21, 29, 150)
    got = PricedSteps(pricer.seconds, Bends.of(program)).decode_seconds(contexts, 90)
    want = [pricer.seconds(StepShape((1,) * 5, tuple(n + i for n in contexts), 5)) for i in range(90)]
    assert got == pytest.approx(want, rel=1e-8)
