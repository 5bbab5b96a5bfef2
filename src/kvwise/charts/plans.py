"""The charts of a plan: memory against context and requests; roofline with prefill and decode; latency against load.

plan_figure puts those that there is something to draw for side by side; plan_page lays them out on an HTML page. All
of it is drawn from what the planner says; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvwise.charts.load import LoadPoint, draw_tpot, draw_ttft
from kvwise.charts.memory import MemoryChart, draw_memory, largest_contexts
from kvwise.charts.roofline import Mark, draw_roofline
from kvwise.charts.style import KV, WEIGHTS, house_style, new_figure
from kvwise.charts.write import check_suffix, html_page, html_table, write_figure
from kvwise.errors import NotMeasured
from kvwise.spec.shape import StepShape
from kvwise.units import format_bytes, format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kvwise.backends.price.step import StepPrice, StepPricer
    from kvwise.planner.latency import Latency
    from kvwise.planner.plan import Plan


@dataclass(frozen=True, slots=True)
class Roofline:
    """The machine's bytes/s and FLOP/s for the model's matrices, and the priced steps that lie under them."""

    bytes_per_s: float
    flops_per_s: float
    prefill: StepPrice
    decode: StepPrice

    @classmethod
    def of(cls, plan: Plan) -> Roofline | None:
        """Of one device, or of this machine; None where nothing is known of its speed."""
        latency = plan.latency
        try:
            found = None if latency is None else _machine(plan, latency)
        except NotMeasured:
            found = None
        if latency is None or found is None:
            return None
        pricer, bytes_per_s, flops_per_s = found
        prefill = pricer.price(StepShape.prefill(latency.prefill.tokens))
        decode = pricer.price(StepShape.decode(latency.decode.context, latency.decode.tokens))
        return cls(bytes_per_s, flops_per_s, prefill, decode)


def _machine(plan: Plan, latency: Latency) -> tuple[StepPricer, float, float] | None:
    """The pricer of a plan's steps, and the roof they lie under: bytes/s and FLOP/s. Raises NotMeasured."""
    if plan.placed is not None:
        bandwidth = plan.placed.placement.device.bandwidth
        if plan.pricer is None or bandwidth is None or latency.ridge is None:
            return None
        return plan.pricer, bandwidth, latency.ridge * bandwidth
    if plan.memory is None:
        return None
    from kvwise.planner.machine import machine_pricer, machine_roof

    return machine_pricer(plan.memory), *machine_roof(plan.memory)


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """Latencies at several rates, the SLO that was asked about, and the highest rate that keeps it."""

    points: tuple[LoadPoint, ...]
    ttft_limit_s: float | None = None
    tpot_limit_s: float | None = None
    best_rate: float | None = None


@dataclass(frozen=True, slots=True)
class PlanCharts:
    """What there is to draw of a plan; None where it was not asked for."""

    plan: Plan
    roofline: Roofline | None = None
    load: LoadCurve | None = None

    @classmethod
    def of(cls, plan: Plan, load: LoadCurve | None = None) -> PlanCharts:
        """All that can be drawn of `plan`, and of a load where one was simulated."""
        return cls(plan, Roofline.of(plan), load)


def write_plan_charts(charts: PlanCharts, path: Path) -> None:
    """One file: SVG or PNG with the panels side by side, or an HTML page that opens without a network.

    Raises UsageError for another ending, or where matplotlib is missing.
    """
    check_suffix(path)
    if path.suffix.lower() == ".html":
        path.write_text(plan_page(charts), "utf-8")
        return
    with house_style():
        figure = plan_figure(charts)
    write_figure(figure, path)


def plan_figure(charts: PlanCharts) -> Figure:
    """All panels of a plan. Call inside house_style."""
    panels = _panels(charts)
    rows = [panels[i : i + 2] for i in range(0, len(panels), 2)]
    mosaic = ";".join(row if len(row) == 2 else row * 2 for row in rows) if len(panels) > 1 else panels
    figure, axes = new_figure(3.6 * len(rows), mosaic, title=_title(charts.plan))
    for panel, drawn in axes.items():
        _draw_panel(panel, charts, drawn)
    return figure


def plan_page(charts: PlanCharts) -> str:
    """The HTML page of a plan: each chart by itself, then its table."""
    headings = {
        "m": "Memory against context and requests at once",
        "r": "What bounds prefill and decode",
        "t": "Time to the first token against load",
        "o": "Time per later token against load",
    }
    with house_style():
        figures = {}
        for panel in _panels(charts):
            figure, axes = new_figure(3.8, panel)
            _draw_panel(panel, charts, axes[panel])
            figures[headings[panel]] = figure
    tables = {"Predicted": _ledger_table(charts.plan), "How many fit": _fit_table(MemoryChart.of(charts.plan))}
    return html_page(_title(charts.plan), figures, tables)


def _panels(charts: PlanCharts) -> str:
    """One letter for each chart there is something to draw for."""
    load = charts.load
    has_tpot = load is not None and any(point.tpot_s is not None for point in load.points)
    return "m" + ("r" if charts.roofline else "") + ("t" if load else "") + ("o" if has_tpot else "")


def _draw_panel(panel: str, charts: PlanCharts, axes: object) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    load = charts.load
    if panel == "m":
        draw_memory(axes, MemoryChart.of(charts.plan))
        axes.set_title("memory against context")
    elif panel == "r" and charts.roofline is not None:
        roof = charts.roofline
        draw_roofline(axes, (roof.bytes_per_s, roof.flops_per_s), marks(roof))
        axes.set_title("what bounds prefill and decode")
    elif panel == "t" and load is not None:
        draw_ttft(axes, load.points, limit_s=load.ttft_limit_s, best_rate=load.best_rate)
    elif panel == "o" and load is not None:
        draw_tpot(axes, load.points, limit_s=load.tpot_limit_s, best_rate=load.best_rate)


def marks(roofline: Roofline) -> Sequence[Mark]:
    """Prefill and decode where they are predicted to lie."""
    named = (("prefill", roofline.prefill, WEIGHTS), ("decode", roofline.decode, KV))
    return [
        Mark(
            label=name,
            intensity=price.cost.flops / price.cost.moved_bytes,
            predicted_flops_per_s=price.cost.flops / price.predicted_seconds,
            measured_flops_per_s=None,
            color=color,
        )
        for name, price, color in named
    ]


def _title(plan: Plan) -> str:
    where = "" if plan.placed is None else f" on {plan.placed.placement}"
    verdict = "fits" if plan.fits else "does not fit"
    name = plan.model.rpartition("/")[2][:60]
    asked = f"{format_count(plan.batch)} × {format_count(plan.context)} tokens"
    needed = format_bytes(plan.total_bytes + plan.reserve_bytes)
    return f"{name}{where} {verdict} at {asked}: {needed} of {format_bytes(plan.budget_bytes)}"


def _ledger_table(plan: Plan) -> str:
    rows = [(row.label, row.format_value(row.predicted)) for row in plan.rows]
    return html_table(("row", "predicted"), [*rows, ("total", format_bytes(plan.total_bytes))])


def _fit_table(chart: MemoryChart) -> str:
    rows = [(f"{batch}", format_count(tokens) if tokens else "none") for batch, tokens in largest_contexts(chart)]
    return html_table(("requests at once", "tokens of each that fit"), rows)
