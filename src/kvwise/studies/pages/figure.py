"""The figure of the pages study: where the pool goes under each policy, and what the size of a block costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvwise.charts.style import ACTIVATIONS, INK, KV, OPTIMIZER, PALE, RUNTIME, SOFT, WASTE, grid, new_figure
from kvwise.spec.kv import BLOCK_TOKENS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kvwise.studies.study import Results

_PARTS: Final = (
    ("stored", KV, "white", "tokens"),
    ("later", WASTE, INK, "tokens to come"),
    ("internal", RUNTIME, INK, "never used"),
    ("external", OPTIMIZER, INK, "in holes"),
    ("unused", PALE, INK, "too little"),
)
_BARS: Final = ("the maximum", "a power of two", "an oracle", "256", "64", "16", "1")


def draw(results: Results) -> Figure:
    policies = {row["name"]: row for row in results["policies"]}
    own, longest = policies["16"], policies["the maximum"]
    title = f"Blocks hold {own['requests'] / longest['requests']:.0f} × the requests that room for the longest holds"
    figure, panels = new_figure(3.6, "ab;ac", widths=(2.0, 1.0), title=title)
    _draw_pool(panels["a"], [policies[name] for name in _BARS if name in policies])
    _draw_requests(panels["b"], results)
    _draw_books(panels["c"], results)
    return figure


def _draw_pool(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for y, row in enumerate(rows):
        left = 0.0
        for part, color, ink, _ in _PARTS:
            share = row[part]
            axes.barh(y, share, left=left, height=0.72, color=color)
            if share >= 0.045:
                axes.text(left + share / 2, y, f"{share:.0%}", color=ink, ha="center", va="center", fontsize=8)
            left += share
        axes.text(1.015, y, f"{row['requests']:.0f}", va="center", fontsize=9, fontweight="bold")
    axes.text(1.1, -1.2, "requests", va="center", ha="right", fontsize=8, color=SOFT)
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -1.5)
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    axes.spines[["bottom", "left"]].set_visible(False)
    axes.tick_params(length=0)
    _draw_key(axes)
    axes.set_title("where the pool goes")


def _draw_key(axes: Axes) -> None:
    x = 0.0
    for _, color, _, name in _PARTS:
        axes.barh(-1.2, 0.018, left=x, height=0.42, color=color)
        axes.text(x + 0.026, -1.2, name, va="center", fontsize=8)
        x += 0.055 + 0.0145 * len(name)


def _label(row: dict[str, Any]) -> str:
    if row["block_tokens"] is None:
        return f"one piece, by {row['name']}"
    return f"blocks of {row['block_tokens']}" + (", as kvwise" if row["block_tokens"] == BLOCK_TOKENS else "")


def _draw_requests(axes: Axes, results: Results) -> None:
    rows = [row for row in results["policies"] if row["block_tokens"]]
    sizes = [row["block_tokens"] for row in rows]
    held = [row["requests"] for row in rows]
    axes.plot(sizes, [row["predicted_requests"] for row in rows], color=KV, linewidth=1.2)
    axes.plot(sizes, held, "o", color=KV)
    axes.set_ylim(0, 1.2 * max(held))
    axes.set_title("requests held", fontsize=9)
    _by_block_size(axes, sizes)
    axes.tick_params(labelbottom=False)


def _draw_books(axes: Axes, results: Results) -> None:
    sizes, seconds = zip(*results["bookkeeping_s"], strict=True)
    axes.plot(sizes, [1e6 * s for s in seconds], "o-", color=ACTIVATIONS, linewidth=0.8)
    axes.set_ylim(0, None)
    axes.set_title("µs of bookkeeping a step", fontsize=9)
    axes.set_xlabel("tokens in a block")
    _by_block_size(axes, list(sizes))


def _by_block_size(axes: Axes, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes[::2], [str(size) for size in sizes[::2]])
    axes.minorticks_off()
    grid(axes)
