"""A roofline: what a machine can do at each arithmetic intensity, and where work lies under it.

FLOP/s ≤ min(peak FLOP/s, intensity · bytes/s). Source: Williams et al., CACM 52(4), 2009. Knows neither plan nor study.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from kvwise.charts.style import INK, SOFT, grid, with_halo

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Side = Literal["below", "left", "right"]
_PLACES: Final[dict[Side, Any]] = {
    "below": ((0, -12), "center", min),
    "left": ((-9, 0), "right", min),
    "right": ((9, 0), "left", max),
}


@dataclass(frozen=True, slots=True)
class Mark:
    """Work of `intensity` FLOPs per byte. Predicted is drawn as a ring, measured as a dot; its label on `side`."""

    label: str
    intensity: float
    predicted_flops_per_s: float | None
    measured_flops_per_s: float | None
    color: str
    side: Side = "below"


def draw_roofline(axes: Axes, roof: tuple[float, float] | None, marks: Sequence[Mark]) -> None:
    """`roof`: (bytes/s, FLOP/s); None where it is not known, and then only the marks are drawn."""
    rates = [r for m in marks for r in (m.predicted_flops_per_s, m.measured_flops_per_s) if r]
    intensities = [m.intensity for m in marks]
    low, high = min(intensities) / 3, max(intensities) * 4
    if roof is not None:
        _draw_roof(axes, roof, low, max(high, 4 * roof[1] / roof[0]))
        rates.append(roof[1])
        high = max(high, 4 * roof[1] / roof[0])
    for mark in marks:
        _draw_mark(axes, mark)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(min(rates) / 4, max(rates) * 4)
    grid(axes)
    axes.set_xlabel("FLOPs per byte moved")
    axes.yaxis.set_major_formatter(lambda value, _: format_flops(value))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _draw_roof(axes: Axes, roof: tuple[float, float], low: float, high: float) -> None:
    bytes_per_s, flops_per_s = roof
    ridge = flops_per_s / bytes_per_s
    axes.plot([low, ridge, high], [low * bytes_per_s, flops_per_s, flops_per_s], color=INK, linewidth=1.4, zorder=2)
    axes.plot([ridge, ridge], [flops_per_s / 1e6, flops_per_s], color=SOFT, linewidth=0.8, linestyle=":", zorder=1)
    said = f"the roof: {format_flops(flops_per_s)}, reading {_scaled(bytes_per_s)}B/s"
    axes.text(0.02, 0.97, said, transform=axes.transAxes, va="top", fontsize=8)


def _draw_mark(axes: Axes, mark: Mark) -> None:
    if mark.predicted_flops_per_s is not None:
        axes.plot(
            mark.intensity, mark.predicted_flops_per_s, "o", markersize=9, color="none", markeredgecolor=mark.color,
            markeredgewidth=1.4, zorder=3,
        )  # fmt: skip
    if mark.measured_flops_per_s is not None:
        axes.plot(mark.intensity, mark.measured_flops_per_s, "o", color=mark.color, zorder=4)
    rates = [rate for rate in (mark.predicted_flops_per_s, mark.measured_flops_per_s) if rate is not None]
    offset, aligned, rate = _PLACES[mark.side]
    label = axes.annotate(
        mark.label, (mark.intensity, rate(rates)), xytext=offset, textcoords="offset points", color=mark.color,
        ha=aligned, va="center", fontsize=8.5, fontweight="bold", zorder=5,
    )  # fmt: skip
    with_halo(label)


def format_flops(rate: float) -> str:
    """FLOP/s in the unit that a person would pick: '216 GFLOP/s'."""
    return f"{_scaled(rate)}FLOP/s"


def _scaled(rate: float) -> str:
    """Three digits and the prefix of a unit: 2.68e12 -> '2.68 T'."""
    for unit, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if rate >= unit:
            return f"{rate / unit:.3g} {name}"
    return f"{rate:.3g} "
