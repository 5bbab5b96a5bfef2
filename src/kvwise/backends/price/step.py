"""What pricing a step gives, whatever the machine: seconds by class of kernel, which limit each class is bound by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from kvwise.backends.price.kernels import KernelKind
from kvwise.frozen import dataclass
from kvwise.program.cost import OpCost
from kvwise.spec.shape import StepShape


@dataclass(frozen=True, slots=True)
class PartPrice:
    """All kernels of one class in a step. `count` of them; `seconds` in all.

    memory_s, arithmetic_s: what moving bytes and computing would take alone; fixed_s: starting kernels, waiting for
    messages. Where moving and computing overlap, their sum is more than `seconds`.
    """

    kind: KernelKind
    count: int
    cost: OpCost
    memory_s: float
    arithmetic_s: float
    fixed_s: float
    seconds: float

    @property
    def bound(self) -> str:
        """Which limit takes longest: 'memory', 'arithmetic' or 'fixed'."""
        limits = {"memory": self.memory_s, "arithmetic": self.arithmetic_s, "fixed": self.fixed_s}
        return max(limits, key=limits.__getitem__)


@dataclass(frozen=True, slots=True)
class StepPrice:
    """`predicted_seconds` is the sum of the parts' seconds and overhead_s, the time that no kernel runs."""

    parts: tuple[PartPrice, ...]
    overhead_s: float
    predicted_seconds: float
    cost: OpCost

    def part(self, kind: KernelKind) -> PartPrice | None:
        return next((part for part in self.parts if part.kind is kind), None)

    @property
    def bound(self) -> str:
        """What most of the step is bound by: 'memory', 'arithmetic' or 'fixed'."""
        seconds = {"memory": 0.0, "arithmetic": 0.0, "fixed": self.overhead_s}
        for part in self.parts:
            seconds[part.bound] += part.seconds
        return max(seconds, key=seconds.__getitem__)


def join_by_kind(parts: Iterable[PartPrice]) -> tuple[PartPrice, ...]:
    """One part for each class, in the order of the classes."""
    by_kind: dict[KernelKind, list[PartPrice]] = defaultdict(list)
    for part in parts:
        by_kind[part.kind].append(part)
    return tuple(_joined(kind, by_kind[kind]) for kind in KernelKind if kind in by_kind)


def _joined(kind: KernelKind, parts: Sequence[PartPrice]) -> PartPrice:
    return PartPrice(
        kind,
        sum(p.count for p in parts),
        sum((p.cost for p in parts), OpCost()),
        sum(p.memory_s for p in parts),
        sum(p.arithmetic_s for p in parts),
        sum(p.fixed_s for p in parts),
        sum(p.seconds for p in parts),
    )


def by_tokens(shape: StepShape) -> Iterator[StepShape]:
    """Requests that compute one token, and those that compute several; `shape` itself where all compute one."""
    if len(shape.queries) == shape.num_tokens:
        yield shape
        return
    for several in (False, True):
        pairs = [(q, n) for q, n in zip(shape.queries, shape.contexts, strict=True) if (q > 1) is several]
        if pairs:
            queries, contexts = zip(*pairs, strict=True)
            yield StepShape(queries, contexts, len(pairs))


class StepPricer(Protocol):
    """Says what a step takes before it runs, on one machine."""

    def price(self, shape: StepShape) -> StepPrice:
        """Pure."""
        ...

    def seconds(self, shape: StepShape) -> float:
        """`price(shape).predicted_seconds`, without its parts: for simulations, which ask millions of times."""
        ...
