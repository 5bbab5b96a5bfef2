"""Latency against load: what waits, and how long a token takes, as more requests come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwise.charts.style import INK, KV, SOFT, WEIGHTS, grid, label_end, seconds_axis, with_halo
from kvwise.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kvwise.planner.simulation.results import Distribution, Summary


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of one latency at one load, in seconds."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """`rate`: requests/s that were offered. tpot_s None: every request had one token."""

    rate: float
    ttft_s: Percentiles
    tpot_s: Percentiles | None

    @classmethod
    def of(cls, rate: float, summary: Summary) -> LoadPoint | None:
        """Of a simulation at that rate; None where it served nobody."""
        ttft, tpot = (_percentiles(summary.latencies.get(name)) for name in ("ttft", "tpot"))
        return None if ttft is None else cls(rate, ttft, tpot)


def _percentiles(latency: Distribution | None) -> Percentiles | None:
    return None if latency is None else Percentiles(*(latency.percentiles[p] for p in (50, 90, 99)))


def draw_ttft(axes: Axes, points: Sequence[LoadPoint], *, limit_s: float | None, best_rate: float | None) -> None:
    """`limit_s`: an SLO; `best_rate`: the highest rate that keeps it."""
    _draw(axes, points, lambda p: p.ttft_s, WEIGHTS, limit_s, best_rate)
    axes.set_title("time to the first token")


def draw_tpot(axes: Axes, points: Sequence[LoadPoint], *, limit_s: float | None, best_rate: float | None) -> None:
    _draw(axes, points, lambda p: p.tpot_s, KV, limit_s, best_rate)
    axes.set_title("time per later token")


def _draw(
    axes: Axes,
    points: Sequence[LoadPoint],
    latency: Callable[[LoadPoint], Percentiles | None],
    color: str,
    limit_s: float | None,
    best_rate: float | None,
) -> None:
    drawn = [(point.rate, seconds) for point in sorted(points, key=lambda p: p.rate) if (seconds := latency(point))]
    if not drawn:
        return
    rates = [rate for rate, _ in drawn]
    axes.fill_between(rates, [s.p50 for _, s in drawn], [s.p99 for _, s in drawn], color=color, alpha=0.15, linewidth=0)
    for name, wide in (("p50", 1.8), ("p90", 1.2), ("p99", 0.8)):
        line = [getattr(seconds, name) for _, seconds in drawn]
        axes.plot(rates, line, color=color, linewidth=wide)
    _label_ends(axes, rates[-1], drawn[-1][1], color)
    if limit_s is not None:
        axes.axhline(limit_s, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
        text = f"at most {format_seconds(limit_s)}"
        with_halo(axes.text(rates[0], limit_s * 1.06, text, fontsize=8.5, va="bottom", zorder=5))
    if best_rate is not None:
        axes.axvline(best_rate, color=SOFT, linewidth=1, linestyle=":")
        note = axes.annotate(
            f"{best_rate:.3g}/s", (best_rate, 0), xycoords=("data", "axes fraction"), xytext=(-4, 5),
            textcoords="offset points", ha="right", fontsize=8.5, fontweight="bold",
        )  # fmt: skip
        with_halo(note)
    seconds_axis(axes)
    axes.set_xlim(left=0)
    grid(axes)
    axes.set_xlabel("requests/s offered")


def _label_ends(axes: Axes, rate: float, last: Percentiles, color: str) -> None:
    """p50, p90 and p99 at the ends of their lines, where they are apart enough to be told."""
    label_end(axes, rate, last.p99, "p99", color)
    if last.p90 < last.p99 / 1.15:
        label_end(axes, rate, last.p90, "p90", color)
    if last.p50 < min(last.p90, last.p99) / 1.15:
        label_end(axes, rate, last.p50, "p50", color)
