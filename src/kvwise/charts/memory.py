"""Memory against context, one line for each number of requests at once, and the machine's memory across them.

Knows a plan's sums, not how they are made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from kvwise.charts.style import (
    INK,
    SERIES,
    WEIGHTS,
    bytes_axis,
    format_tokens,
    grid,
    label_end,
    tokens_axis,
    with_halo,
)
from kvwise.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kvwise.planner.plan import Plan

_POINTS_PER_DOUBLING: Final = 4
_SMALLEST_CONTEXT: Final = 2**10
_DOUBLINGS: Final = 8  # of the context that are drawn
_BATCHES: Final = (1, 8, 32)
_HEADROOM: Final = 4  # times the machine's memory that the figure reaches


@dataclass(frozen=True, slots=True)
class MemoryChart:
    """What a plan holds as contexts and requests grow; on several devices, what the fullest of them holds.

    request_bytes: of one request of so many tokens. fixed_bytes: all that no request brings; it is drawn as constant.
    The dot is at (context, batch). max_context: the model's own, None where it is not known.
    """

    weight_bytes: int
    fixed_bytes: int
    request_bytes: Callable[[int], int]
    budget_bytes: int
    context: int
    batch: int
    max_context: int | None = None

    @classmethod
    def of(cls, plan: Plan) -> MemoryChart:
        """Of `plan`, its KV pool replaced by what requests hold."""
        rows = {row.name: int(row.predicted or 0) for row in plan.rows}
        stage = None if plan.placed is None else plan.placed.fullest
        held = plan.kv.request_bytes if stage is None else partial(stage.policy.held_bytes, stage.kv)
        return cls(
            weight_bytes=rows["weights"],
            fixed_bytes=plan.total_bytes - rows.get("kv_pool", 0) - rows.get("states", 0),
            request_bytes=held,
            budget_bytes=plan.budget_bytes - plan.reserve_bytes,
            context=plan.context,
            batch=plan.batch,
            max_context=None if plan.spec is None else plan.spec.max_positions,
        )

    def total_bytes(self, context: int, batch: int) -> int:
        return self.fixed_bytes + batch * self.request_bytes(context)

    @property
    def batches(self) -> list[int]:
        return sorted({*_BATCHES, self.batch})

    @property
    def contexts(self) -> list[int]:
        """Around the one asked about, evenly on a logarithmic axis."""
        first = min(_SMALLEST_CONTEXT, self.context)
        last = max(self.max_context or first * 2**_DOUBLINGS, 2 * self.context)
        count = _POINTS_PER_DOUBLING * (last // first).bit_length()
        return sorted({round(first * (last / first) ** (i / count)) for i in range(count + 1)})


def draw_memory(axes: Axes, chart: MemoryChart) -> None:
    contexts, asked = chart.contexts, chart.total_bytes(chart.context, chart.batch)
    highest = _HEADROOM * max(chart.budget_bytes, asked)
    for batch, color in zip(chart.batches, SERIES[1:], strict=False):
        totals = [total for n in contexts if (total := chart.total_bytes(n, batch)) <= highest]
        wide = 2.4 if batch == chart.batch else 1.4
        axes.plot(contexts[: len(totals)], totals, color=color, linewidth=wide)
        if totals:
            _label_batch(axes, contexts, totals, batch, color)
    axes.axhline(chart.budget_bytes, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.axhline(chart.weight_bytes, color=WEIGHTS, linewidth=1.2)
    bytes_axis(axes)
    tokens_axis(axes)
    axes.set_ylim(min(chart.weight_bytes, chart.budget_bytes) / 1.5, 1.35 * highest)
    axes.set_xlim(contexts[0], contexts[-1])
    _label_lines(axes, chart, contexts[0])
    axes.plot(chart.context, asked, "o", color=INK, markersize=7, zorder=5)
    text = f"{format_bytes(asked)} at {chart.batch} × {format_tokens(chart.context)}"
    room = chart.context >= 16 * contexts[0]  # for a label on the left, where fewer lines are
    offset, aligned = ((-7, 8), "right") if room else ((7, -12), "left")
    note = axes.annotate(
        text, (chart.context, asked), xytext=offset, textcoords="offset points", ha=aligned, fontsize=8.5,
        fontweight="bold", zorder=6,
    )  # fmt: skip
    with_halo(note)
    grid(axes)
    axes.set_xlabel("context of each request, tokens")


def _label_batch(axes: Axes, contexts: list[int], totals: list[int], batch: int, color: str) -> None:
    """Where the line ends: at the right, or where it leaves the figure at the top."""
    text = f"{batch} at once"
    if len(totals) == len(contexts):
        label_end(axes, contexts[-1], totals[-1], text, color)
    else:
        label_end(axes, contexts[len(totals) - 1], totals[-1], text, color, dx=-4, dy=7)


def _label_lines(axes: Axes, chart: MemoryChart, left: int) -> None:
    """The machine's line from above, the weights' from below, so that they never meet."""
    budget = f"there is room for {format_bytes(chart.budget_bytes)}"
    with_halo(axes.text(left * 1.1, chart.budget_bytes * 1.08, budget, fontsize=8.5, va="bottom", zorder=6))
    weights = f"weights {format_bytes(chart.weight_bytes)}"
    with_halo(
        axes.text(left * 1.1, chart.weight_bytes / 1.08, weights, fontsize=8.5, color=WEIGHTS, va="top", zorder=6)
    )


def largest_contexts(chart: MemoryChart) -> list[tuple[int, int]]:
    """(batch, tokens of each request that still fit) for the batches that are drawn; 0 where none does."""
    return [(batch, _largest(chart, batch)) for batch in chart.batches]


def _largest(chart: MemoryChart, batch: int) -> int:
    low, high = 0, 2**40
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if chart.total_bytes(middle, batch) <= chart.budget_bytes else (low, middle - 1)
    return low
