"""A sweep for people, a grid of contexts and batches for each machine, and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import astuple, fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvwise.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from kvwise.planner.sweep import Sweep, SweepPoint

_SHOWN_CHARS: Final = 200
_MOST_COLUMNS: Final = 12


def render_sweep(sweep: Sweep, console: Console) -> None:
    """Prints to `console`, nothing else."""
    from kvwise.cli.output import printable

    fitting = sum(point.fits for point in sweep.points)
    title = f"{sweep.model[:_SHOWN_CHARS]}: {format_count(fitting)} of {format_count(len(sweep.points))} points fit"
    console.print(printable(title), style="bold")
    for on, points in groupby(sweep.points, key=lambda point: point.on):
        console.print(_grid(on, list(points)))
    console.print("in a cell: first token, each further token; or by how much it does not fit", style="dim")


def _grid(on: str, points: Sequence[SweepPoint]) -> Table:
    from rich.table import Table

    batches = sorted({point.batch for point in points})
    shown = batches if len(batches) <= _MOST_COLUMNS else [*batches[: _MOST_COLUMNS - 1], batches[-1]]
    left_out = "" if shown == batches else f", {len(batches) - len(shown)} batches between not shown"
    table = Table(title=f"on {on}{left_out}", title_justify="left")
    table.add_column("")
    for batch in shown:
        table.add_column(f"batch {format_count(batch)}", justify="right")
    cells = {(point.context, point.batch): point for point in points}
    for context in sorted({point.context for point in points}):
        table.add_row(f"{format_count(context)} tokens", *(_cell(cells[context, batch]) for batch in shown))
    return table


def _cell(point: SweepPoint) -> str:
    if not point.fits:
        return f"+{format_bytes(-point.free_bytes)}"
    if point.ttft_s is None:
        return format_bytes(point.total_bytes)
    further = "" if point.tpot_s is None else f", {format_seconds(point.tpot_s)}"
    return f"{format_seconds(point.ttft_s)}{further}"


def write_csv(sweep: Sweep, path: Path) -> None:
    """A line for each point, under the names of its fields; empty where a figure is not known."""
    from kvwise.planner.sweep import SweepPoint

    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["model", *(field.name for field in fields(SweepPoint))])
        rows.writerows([sweep.model, *astuple(point)] for point in sweep.points)
