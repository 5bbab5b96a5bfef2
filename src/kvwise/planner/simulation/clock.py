"""Seconds of steps on the virtual clock, from a price of single steps, without asking for the price of each.

While the same requests decode, a step's price depends on their contexts alone, and each kernel's bytes and FLOPs grow
linearly with them until one reaches a window's or a chunk's end. A kernel takes the larger of two such lines, a step
the sum of its kernels: a convex function. Where a convex function meets the middle of its chord it is the chord, so
three prices give all between; where it does not, both halves are looked at. (Off the chord by d in the middle, it is
off by 2 d at most anywhere.)

    seconds │            ·╱        ╲ chord
            │         ·╱ ╱         three prices: two ends and the middle
            │    _·─╱ ╱
            └─────────────── sum of contexts

Without windows and chunks the price depends on the number of requests and the sum of their contexts only, and is kept
by these. Knows no requests and no scheduler.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

from kvwise.program.ir import Program
from kvwise.program.special import LatentAttention
from kvwise.spec.shape import StepShape

Price = Callable[[StepShape], float]

_CELL_TOKENS: Final = 1024  # per request: so far apart are the ends of what is priced at once and kept
_CLOSE: Final = 1e-9  # of a step's seconds, between the chord's middle and the price there


class StepTimes(Protocol):
    """What the simulation asks of a device: how long steps take."""

    def step_seconds(self, shape: StepShape) -> float:
        """Seconds of one step."""
        ...

    def decode_seconds(self, contexts: Sequence[int], num_steps: int) -> Sequence[float]:
        """Seconds of each of `num_steps` decode steps in a row of the same requests.

        `contexts`: tokens of each in the cache after the first of these steps; one more after each further step.
        """
        ...


@dataclass(frozen=True, slots=True)
class Bends:
    """Contexts of one request at which the price of some layer bends.

    windows: sizes of windows and numbers of chosen positions, which bend once; chunks: sizes, which bend at multiples.
    """

    windows: frozenset[int] = frozenset()
    chunks: frozenset[int] = frozenset()

    @classmethod
    def of(cls, program: Program) -> Bends:
        """Those of a program's layers."""
        chosen = {op.top_k for op in program.ops if isinstance(op, LatentAttention) and op.top_k is not None}
        windows = {layer.window for layer in program.kv_layers if layer.window is not None}
        chunks = {layer.chunk for layer in program.kv_layers if layer.chunk is not None}
        return cls(frozenset(windows | chosen), frozenset(chunks))

    @classmethod
    def joined(cls, parts: Iterable[Bends]) -> Bends:
        """Those of several programs that a step runs."""
        parts = list(parts)
        return cls(
            frozenset().union(*(part.windows for part in parts)), frozenset().union(*(part.chunks for part in parts))
        )

    def after(self, context: int, most: int) -> Iterator[int]:
        """By how many tokens a request of `context` reaches a bend, each less than `most`."""
        yield from (window - context for window in self.windows if 0 <= window - context < most)
        for chunk in self.chunks:
            yield from range(-context % chunk, most, chunk)


NO_BENDS: Final = Bends()


class PricedSteps:
    """Step times from `price`, which is asked again for every step that is not a decode."""

    def __init__(self, price: Price, bends: Bends = NO_BENDS) -> None:
        self._price, self._bends = price, bends
        self._kept: dict[int, _Kept] = {}

    def step_seconds(self, shape: StepShape) -> float:
        return self._price(shape)

    def decode_seconds(self, contexts: Sequence[int], num_steps: int) -> Sequence[float]:
        if self._bends != NO_BENDS:
            return self._between_bends(contexts, num_steps)
        batch, total = len(contexts), sum(contexts)
        kept = self._kept.get(batch)
        if kept is None:
            kept = self._kept[batch] = _Kept(self._price, batch)
        return [kept.seconds(total + batch * step) for step in range(num_steps)]

    def _between_bends(self, contexts: Sequence[int], num_steps: int) -> list[float]:
        """From one bend to the next a step's price is convex: the steps of a piece are priced together."""
        batch = len(contexts)
        queries = (1,) * batch

        def price(step: int) -> float:
            return self._price(StepShape(queries, tuple([context + step for context in contexts]), batch))

        # A step in which a request reaches a bend is a piece of its own: the line before it, and the one after.
        reached = {step for context in contexts for step in self._bends.after(context, num_steps)}
        edges = sorted({0, num_steps, *reached, *(step + 1 for step in reached)})
        seconds: list[float] = []
        for start, stop in pairwise(edges):
            line = _Lines(_breakpoints(price, start, stop - 1))
            seconds.extend(line.at(step) for step in range(start, stop))
        return seconds


class _Kept:
    """Prices of decodes of `batch` requests by the sum of their contexts, cell by cell, as they are asked for."""

    def __init__(self, price: Price, batch: int) -> None:
        self._price, self._batch = price, batch
        self._width = batch * _CELL_TOKENS
        self._cells: dict[int, _Lines] = {}

    def seconds(self, total: int) -> float:
        number = (total - self._batch) // self._width
        line = self._cells.get(number)
        if line is None:
            first = self._batch + number * self._width  # the least sum: one token each
            points = _breakpoints(self._price_of, first, first + self._width)
            line = self._cells[number] = _Lines(points)
        return line.at(total)

    def _price_of(self, total: int) -> float:
        each, more = divmod(total, self._batch)
        contexts = (each + 1,) * more + (each,) * (self._batch - more)
        return self._price(StepShape((1,) * self._batch, contexts, self._batch))


class _Lines:
    """Straight lines between points (x, y), x ascending."""

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        self._x = [x for x, _ in points]
        self._y = [y for _, y in points]

    def at(self, x: int) -> float:
        xs, ys = self._x, self._y
        i = bisect_right(xs, x) - 1
        if xs[i] == x:
            return ys[i]
        return ys[i] + (ys[i + 1] - ys[i]) * ((x - xs[i]) / (xs[i + 1] - xs[i]))


def _breakpoints(price: Callable[[int], float], first: int, last: int) -> list[tuple[int, float]]:
    """Points of the convex function `price` on first..last, straight lines between which are the function."""
    points = [(first, price(first))]
    if last == first:
        return points
    _append_pieces(price, points, (last, price(last)))
    return points


def _append_pieces(price: Callable[[int], float], points: list[tuple[int, float]], end: tuple[int, float]) -> None:
    """Append what is needed between the last of `points` and `end`, and `end`."""
    first, at_first = points[-1]
    last, at_last = end
    middle = (first + last) // 2
    if middle > first:
        on_chord = at_first + (at_last - at_first) * ((middle - first) / (last - first))
        at_middle = price(middle)
        if abs(at_middle - on_chord) > _CLOSE * at_middle:
            _append_pieces(price, points, (middle, at_middle))
            _append_pieces(price, points, end)
            return
    points.append(end)
