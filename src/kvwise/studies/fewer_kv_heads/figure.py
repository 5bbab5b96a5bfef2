"""The figure of the study of KV heads: on the left what fewer of them save, on the right what that costs a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvwise.charts.style import ACTIVATIONS, INK, KV, OPTIMIZER, RUNTIME, format_tokens, grid, label_end, new_figure
from kvwise.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kvwise.studies.study import Results

_COLORS: Final = (KV, OPTIMIZER, ACTIVATIONS)


def draw(results: Results) -> Figure:
    title = "Fewer KV heads make long contexts fast, but a trained model can't be given fewer"
    figure, panels = new_figure(3.5, "ab", widths=(1.35, 1.0), title=title)
    _draw_times(panels["a"], results["timed"])
    _draw_quality(panels["b"], results["changed"])
    return figure


def _draw_times(axes: Axes, timed: list[dict[str, Any]]) -> None:
    ends = []
    for model, color in zip(timed, _COLORS, strict=False):
        contexts = [point["context"] for point in model["tpot"]]
        axes.plot(contexts, [1e3 * point["measured_s"] for point in model["tpot"]], "o", color=color)
        if model["tpot"][0]["predicted_s"] is not None:
            axes.plot(contexts, [1e3 * point["predicted_s"] for point in model["tpot"]], color=color, linewidth=1.2)
        kept = format_bytes(model["kv_bytes_per_token"])
        text = f"{model['name']}, {_heads(model['kv_heads'], 'KV head')}\n{kept} a token"
        ends.append((1e3 * model["tpot"][-1]["measured_s"], text, color))
    _label_apart(axes, contexts[-1], ends)
    axes.set_xlim(0, contexts[-1] * 1.02)
    axes.set_ylim(0, None)
    axes.set_xticks(contexts, [format_tokens(n) for n in contexts])
    grid(axes)
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("ms per token")
    axes.set_title("one size, predicted (lines) and measured (dots)")


def _heads(count: int, what: str = "head") -> str:
    return f"{count} {what}" + ("s" if count > 1 else "")


def _label_apart(axes: Axes, x: float, ends: list[tuple[float, str, str]]) -> None:
    """Labels at the ends of lines, moved up where two would overlap."""
    gap = 0.17 * max(y for y, _, _ in ends)
    lowest = 0.0
    for y, text, color in sorted(ends):
        at = max(y, lowest)
        label_end(axes, x, at, text, color, dx=8)
        lowest = at + gap


def _draw_quality(axes: Axes, changed: dict[str, Any]) -> None:
    rows = sorted(changed["variants"], key=lambda row: row["perplexity"])
    for y, row in enumerate(rows):
        same = row["divergence"] == 0
        axes.barh(y, row["perplexity"], left=1, height=0.62, color=RUNTIME if same else KV)
        axes.text(row["perplexity"] * 1.25, y, f"{row['perplexity']:,.0f}", va="center", fontsize=9, fontweight="bold")
    axes.set_xscale("log")
    axes.set_xlim(1, 300 * max(row["perplexity"] for row in rows))
    axes.set_xticks([])
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), [_heads(row["kv_heads"]) + ": " + row["name"] for row in rows])
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_color(INK if row["divergence"] == 0 else KV)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title("SmolLM2's perplexity (log)")
