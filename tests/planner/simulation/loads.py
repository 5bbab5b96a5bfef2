"""Small loads and setups in which everything happens: sharing, preemption, refusal, long queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from kvwise.planner.simulation.load import Load, RequestSize
from kvwise.planner.simulation.simulate import EngineSetup
from kvwise.spec.shape import StepLimits, StepShape


def price(shape: StepShape) -> float:
    """Some time that depends on all that a step is."""
    return 1e-3 + 1e-4 * shape.num_tokens + 1e-6 * sum(shape.contexts) + 1e-5 * shape.num_logits_rows


class EveryStepPriced:
    """Step times without any shortcut."""

    def __init__(self, price: Callable[[StepShape], float] = price) -> None:
        self.step_seconds = price

    def decode_seconds(self, contexts: Sequence[int], num_steps: int) -> list[float]:
        queries = (1,) * len(contexts)
        shapes = (StepShape(queries, tuple(n + i for n in contexts), len(contexts)) for i in range(num_steps))
        return [self.step_seconds(shape) for shape in shapes]


@st.composite
def request_sizes(draw: st.DrawFn) -> RequestSize:
    output = draw(st.integers(1, 60))
    if draw(st.booleans()):
        return RequestSize(draw(st.integers(1, 90)), output)
    content = draw(st.sampled_from(((0,), (0,), (1,), (0, 2))))
    shared = 512 * len(content)
    return RequestSize(draw(st.integers(shared - 500, shared + 40)), output, content)


@st.composite
def loads(draw: st.DrawFn) -> Load:
    sizes = tuple(draw(st.lists(request_sizes(), min_size=1, max_size=14)))
    if draw(st.booleans()):
        return Load(sizes, None, draw(st.integers(1, 6)), "test")
    gaps = draw(st.lists(st.sampled_from((0.0, 0.001, 0.02, 0.3)), min_size=len(sizes), max_size=len(sizes)))
    times = tuple(sum(gaps[: i + 1]) for i in range(len(gaps)))
    return Load(sizes, times, None, "test")


@st.composite
def setups(draw: st.DrawFn) -> EngineSetup:
    max_requests = draw(st.integers(1, 6))
    limits = StepLimits(
        max_tokens=max_requests + draw(st.sampled_from((3, 20, 600))),
        max_logits_rows=max_requests,
        max_requests=max_requests,
        max_context=draw(st.sampled_from((140, 700, 2000))),
    )
    num_blocks = draw(st.sampled_from((5, 12, 40, 80, 400)))
    return EngineSetup(num_blocks, limits, prefix_cache=draw(st.sampled_from((True, True, False))))
