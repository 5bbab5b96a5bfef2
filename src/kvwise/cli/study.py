"""`kvwise study`: what there is to see about the KV cache, and a study run on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from kvwise.cli import options as o

if TYPE_CHECKING:
    from kvwise.studies.study import Conclusion, Say

_Name = Annotated[Optional[str], typer.Argument(help="Without it, all are listed.", show_default=False)]  # noqa: UP045
_Out = Annotated[Optional[Path], typer.Option(help="Folder to write to; default: ./kvwise-study-NAME.")]  # noqa: UP045
_Trace = Annotated[Optional[Path], typer.Option(help="Lengths from a trace as Azure publishes them (CSV).")]  # noqa: UP045


def study_command(
    name: _Name = None,
    out: _Out = None,
    trace: _Trace = None,
    threads: o.Threads = None,
    redraw: Annotated[bool, typer.Option("--redraw", help="Measure nothing: read the folder's results.")] = False,
    no_figure: Annotated[bool, typer.Option("--no-figure", help="Draw nothing; matplotlib is not needed.")] = False,
    as_json: o.Json = False,
) -> None:
    """Run study NAME on this machine: finding, figure and results go into a folder. Each takes under two minutes."""
    from kvwise.studies.table import STUDIES

    if name is None:
        _list_studies(as_json)
        return
    from kvwise.engine.model import Settings, usable_threads
    from kvwise.studies.running import conclude_study, run_study
    from kvwise.studies.study import Ask

    study = STUDIES[name]
    folder = out or Path(f"kvwise-study-{name}")
    if redraw:
        conclusion = conclude_study(study, folder, figure=not no_figure)
    else:
        with _progress(study.name) as say:
            ask = Ask(usable_threads(Settings(threads=threads)), trace, say)
            conclusion = run_study(study, ask, folder, figure=not no_figure)
    _print(conclusion, folder, as_json)


def _list_studies(as_json: bool) -> None:
    from kvwise.cli.output import people, print_json
    from kvwise.studies.table import STUDIES, shipped_finding

    if as_json:
        print_json({"studies": [{"name": name, "finding": shipped_finding(name)} for name in STUDIES]})
        return
    from rich.table import Table

    table = Table("study", "what it found on the machine it was committed from", show_lines=True)
    for name in STUDIES:
        table.add_row(name, shipped_finding(name))
    console = people(stderr=False)
    console.print(table)
    console.print("Run one here: kvwise study NAME")


def _print(conclusion: Conclusion, folder: Path, as_json: bool) -> None:
    from kvwise.cli.output import people, print_json, printable

    if as_json:
        rows = [row.to_json() for row in conclusion.rows]
        print_json({"finding": conclusion.finding, "rows": rows, "folder": str(folder)})
        return
    from rich.table import Table

    from kvwise.studies.folder import difference

    table = Table("", "predicted", "measured", "difference", "by")
    for column in table.columns[1:4]:
        column.justify = "right"
    for row in conclusion.rows:
        figures = (row.format_value(row.predicted), row.format_value(row.measured), difference(row))
        table.add_row(row.label, *figures, row.source)
    console = people(stderr=False)
    console.print(conclusion.finding, style="bold")
    console.print(table)
    console.print(printable(f"written to {folder}"), style="dim")


@contextmanager
def _progress(name: str) -> Iterator[Say]:
    """Says on stderr what is being measured: one changing line on a terminal, one line each elsewhere."""
    from kvwise.cli.output import people

    console = people()
    if not console.is_terminal:
        yield lambda what: console.print(f"{name}: {what}")
        return
    with console.status(f"{name}: starting") as status:
        yield lambda what: status.update(f"{name}: {what}")
