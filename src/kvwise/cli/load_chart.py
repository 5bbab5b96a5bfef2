"""`kvwise simulate --chart`: latency against load around the one that was asked about, and the plan that bears it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final

from kvwise.charts.load import LoadPoint
from kvwise.charts.plans import LoadCurve, PlanCharts, write_plan_charts
from kvwise.planner.memory import plan
from kvwise.planner.simulation.results import summarize

if TYPE_CHECKING:
    from kvwise.planner.capacity import Capacity, Deployment
    from kvwise.planner.plan import Plan
    from kvwise.planner.simulation.asked import Asked
    from kvwise.planner.simulation.simulate import Progress

_AROUND: Final = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)  # of the load in the middle


def draw_load(
    path: Path, deployment: Deployment, asked: Asked, capacity: Capacity, progress: Progress | None = None
) -> None:
    """Simulates the loads that are drawn: of a search around the highest that keeps the SLO, else around the given."""
    search = capacity.search
    best = None if search is None else search.best
    points, running = [], 1.0
    for level in _levels(asked, capacity):
        record = deployment.serve(asked.at(level), progress)
        if not record.requests:
            continue
        summary = summarize(record)
        running = summary.running_mean
        rate = summary.requests_per_s if asked.closed else level
        if (point := LoadPoint.of(rate, summary)) is not None:
            points.append(point)
    limits = {} if capacity.slo is None else capacity.slo.limits
    # Of a closed loop the best load is a concurrency, which has no place on an axis of rates.
    curve = LoadCurve(tuple(points), limits.get("ttft"), limits.get("tpot"), None if asked.closed else best)
    write_plan_charts(PlanCharts.of(_mean_plan(deployment, asked, running), curve), path)


def _levels(asked: Asked, capacity: Capacity) -> Sequence[float]:
    search, load = capacity.search, capacity.load
    middle = None if search is None else search.best
    if middle is None and load is not None:
        middle = load.concurrency if asked.closed else load.rate
    if middle is None:  # no load keeps the SLO: those that were tried
        return [] if search is None else [trial.load for trial in search.trials]
    levels = [share * middle for share in _AROUND]
    return sorted({max(1, round(level)) for level in levels}) if asked.closed else levels


def _mean_plan(deployment: Deployment, asked: Asked, running: float) -> Plan:
    """Of as many requests of the mean length as ran at the highest load."""
    asked_for = {name: deployment.arguments[name] for name in ("kv_dtype", "weights", "memory_limit")}
    placed = deployment.plan.placed
    if placed is not None:
        asked_for.update(policy=placed.policy, engine=deployment.engine)
    context = round(fmean(size.prompt_tokens + size.output_tokens for size in asked.sizes))
    output_tokens = min(context - 1, max(1, round(fmean(size.output_tokens for size in asked.sizes))))
    return plan(
        deployment.arguments["model"], on=deployment.placement, context=max(2, context), batch=max(1, round(running)),
        output_tokens=output_tokens, **asked_for,
    )  # fmt: skip
