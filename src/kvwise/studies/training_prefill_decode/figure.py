"""The figure of one layer in three phases: on the left what it keeps, on the right how it uses the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvwise.charts.roofline import Mark, draw_roofline
from kvwise.charts.style import ACTIVATIONS, GRADIENTS, INK, KV, OPTIMIZER, SOFT, WEIGHTS, new_figure
from kvwise.studies.training_prefill_decode.conclusion import intensity, kept_bytes
from kvwise.units import MiB, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kvwise.studies.study import Results

_PARTS: Final = {
    "weights": ("weights", WEIGHTS, "white"),
    "gradients": ("gradients", GRADIENTS, INK),
    "optimizer": ("moments", OPTIMIZER, INK),
    "activations": ("activations", ACTIVATIONS, "white"),
    "kv": ("K and V", KV, "white"),
}
_COLORS: Final = {"training": SOFT, "prefill": WEIGHTS, "decode": KV}


def draw(results: Results) -> Figure:
    title = "Training keeps everything, serving K and V; prefill is bound by arithmetic, decode by bytes"
    figure, panels = new_figure(3.5, "ab", widths=(1.25, 1.0), title=title)
    _draw_kept(panels["a"], results["phases"])
    _draw_use(panels["b"], results)
    return figure


def _draw_kept(axes: Axes, phases: list[dict[str, Any]]) -> None:
    whole = max(kept_bytes(phase) for phase in phases) / MiB
    for y, phase in enumerate(phases):
        left = 0.0
        for part in phase["kept"]:
            name, color, ink = _PARTS[part["part"]]
            size = part["predicted_bytes"] / MiB
            axes.barh(y, size, left=left, height=0.55, color=color)
            if size > 0.1 * whole:
                text = f"{name}\n{format_bytes(part['predicted_bytes'])}"
                axes.text(left + size / 2, y, text, color=ink, ha="center", va="center", fontsize=8)
            else:
                text = f" {name} {format_bytes(part['predicted_bytes'])}"
                axes.text(left + size, y, text, color=color, va="center", fontsize=8.5, fontweight="bold")
            left += size
        axes.text(0, y - 0.36, _described(phase), fontsize=8, color=SOFT, va="bottom")
    axes.set_yticks(range(len(phases)), [phase["phase"] for phase in phases])
    axes.set_ylim(len(phases) - 0.6, -0.75)
    axes.set_xlim(0, whole)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title("what one layer keeps")


def _described(phase: dict[str, Any]) -> str:
    count = phase["positions"]
    at_once = f"{count} positions at once" if count > 1 else "1 position at a time"
    return f"{at_once}, rules {phase['rules']}" if phase["rules"] else f"{at_once}, nobody waits for a token"


def _draw_use(axes: Axes, results: Results) -> None:
    marks = [
        Mark(
            label=phase["phase"],
            intensity=intensity(phase),
            predicted_flops_per_s=None if phase["predicted_s"] is None else phase["flops"] / phase["predicted_s"],
            measured_flops_per_s=phase["flops"] / phase["measured_s"],
            color=_COLORS[phase["phase"]],
            side="right" if phase["phase"] == "prefill" else "below",
        )
        for phase in results["phases"]
    ]
    roof = results["roof"]
    draw_roofline(axes, None if roof is None else (roof["bytes_per_s"], roof["flops_per_s"]), marks)
    axes.set_title("how it uses this machine")
    axes.text(
        0.98, 0.03, "rings predicted, dots measured", transform=axes.transAxes, ha="right", fontsize=8, color=SOFT
    )
