"""The figure of the study of memory: on the left what is counted, on the right what is watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvwise.charts.style import (
    INK,
    KV,
    SOFT,
    WEIGHTS,
    bytes_axis,
    format_tokens,
    grid,
    label_end,
    new_figure,
    tokens_axis,
    with_halo,
)
from kvwise.studies.what_fills_memory.conclusion import predicted_crossing
from kvwise.units import GiB, MiB, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kvwise.studies.study import Results


def draw(results: Results) -> Figure:
    title = "Weights are paid once, K and V by every token: sooner or later they are the larger part"
    figure, panels = new_figure(4.1, "ab", widths=(1.15, 1.0), title=title)
    _draw_counted(panels["a"], results["counted"])
    _draw_watched(panels["b"], results["watched"])
    return figure


def _draw_counted(axes: Axes, counted: dict[str, Any]) -> None:
    first, last = 2**11, 2**20
    per_token, weights, machine = counted["kv_bytes_per_token"], counted["weight_bytes"], counted["machine"]
    axes.plot([first, last], [first * per_token, last * per_token], color=KV)
    for name, nbytes in weights.items():
        axes.plot([first, last], [nbytes, nbytes], color=WEIGHTS, linewidth=1.3)
        above = nbytes > machine["bytes"]
        axes.text(
            first * 1.08, nbytes * (1.1 if above else 1 / 1.1), f"weights in {name}", color=WEIGHTS, fontsize=8,
            va="bottom" if above else "top",
        )  # fmt: skip
        tokens = counted["kv_passes_weights_at_tokens"][name]
        axes.plot(tokens, nbytes, "o", color="white", markeredgecolor=KV, markeredgewidth=1.6, zorder=4)
        at = f"{tokens / 1000:.0f} thousand"
        with_halo(axes.annotate(at, (tokens, nbytes), xytext=(5, -9), textcoords="offset points", fontsize=8, zorder=5))
    axes.axhline(machine["bytes"], color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    label = f"{machine['name']}, {format_bytes(machine['bytes'])}"
    with_halo(axes.text(first * 1.08, machine["bytes"] / 1.07, label, va="top", fontsize=8, zorder=5))
    tokens = [2 ** (i / 8) for i in range(8 * 11, 8 * 20 + 1)]
    total = [weights["16 bits"] + n * per_token for n in tokens]
    axes.plot(tokens, total, color=INK, linewidth=1.2)
    axes.text(2**17.6, total[53] * 1.1, "the sum in 16 bits", fontsize=8, ha="right", va="bottom")
    for cell in counted["cells"]:
        axes.plot(cell["context"] * cell["batch"], cell["kv_bytes"], "|", color=KV, markersize=8)
    axes.set_ylim(0.2 * GiB, 300 * GiB)
    axes.set_xlim(first, last)
    bytes_axis(axes)
    tokens_axis(axes)
    grid(axes)
    axes.text(2**13.6, 2**13.6 * per_token * 0.5, "K and V", color=KV, fontsize=9)
    axes.set_xlabel("tokens held: context × batch")
    axes.set_title(f"{counted['model']}, by formula")


def _draw_watched(axes: Axes, watched: dict[str, Any]) -> None:
    samples, per_token = watched["samples"], watched["kv_bytes_per_token"]
    tokens = [s["tokens"] for s in samples]
    weights, allocated = watched["predicted"]["weights"], sum(samples[0]["allocated_bytes"].values())
    axes.plot(tokens, [n * per_token / MiB for n in tokens], color=KV)
    axes.plot(tokens, [s["resident_bytes"]["kv_pool"] / MiB for s in samples], "o", color=KV)
    axes.plot(tokens, [weights / MiB] * len(tokens), color=WEIGHTS)
    axes.plot(tokens[:: len(tokens) - 1], [weights / MiB] * 2, "o", color=WEIGHTS)
    axes.plot(tokens, [allocated / MiB] * len(tokens), color=SOFT, linestyle=(0, (4, 3)))
    axes.plot(tokens, [s["rss_bytes"] / MiB for s in samples], "o-", color=INK, linewidth=0.8, markersize=4)
    crossing = predicted_crossing(watched)
    axes.plot(
        crossing, weights / MiB, "o", color="white", markeredgecolor=KV, markeredgewidth=1.6, zorder=4, markersize=8
    )
    axes.annotate(f"{crossing:,}", (crossing, weights / MiB), xytext=(6, -11), textcoords="offset points", fontsize=8.5)
    end = tokens[-1]
    label_end(axes, end, samples[-1]["rss_bytes"] / MiB, f"the process\n({samples[-1]['rss_source']})", INK)
    label_end(axes, end, allocated / MiB, "the allocator", SOFT)
    label_end(axes, end, tokens[-1] * per_token / MiB, "K and V:\nformula (line),\npagemap (dots)", KV)
    label_end(axes, end, weights / MiB, "weights", WEIGHTS)
    axes.set_xlim(0, end * 1.02)
    axes.set_ylim(0, None)
    axes.set_xticks([end * i // 4 for i in range(5)], [format_tokens(end * i // 4) for i in range(5)])
    grid(axes)
    axes.set_xlabel("tokens held")
    axes.set_ylabel("MiB")
    axes.set_title(f"{watched['model']}, watched as it fills")
