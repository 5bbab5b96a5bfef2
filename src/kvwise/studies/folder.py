"""What a run of a study leaves behind: results.json, the figure, and a README.md whose first line is the finding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from kvwise.errors import UsageError
from kvwise.ledger.rows import LedgerRow
from kvwise.studies.study import Conclusion, Results, Study

README: Final = "README.md"
RESULTS: Final = "results.json"
FIGURE: Final = "figure.svg"
FIGURE_PNG: Final = "figure.png"
RESULTS_VERSION: Final = 1


def write_results(study: Study, machine: dict[str, Any], results: Results, folder: Path) -> None:
    """The run as it was measured, before anything is concluded from it."""
    content = {"study": study.name, "version": RESULTS_VERSION, "machine": machine, "results": results}
    (folder / RESULTS).write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")


def read_results(study: Study, folder: Path) -> tuple[dict[str, Any], Results]:
    """(machine, results) of a run that is in `folder`. Raises UsageError where there is none of this study."""
    path = folder / RESULTS
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["study"] == study.name and content["version"] == RESULTS_VERSION:
            return dict(content["machine"]), dict(content["results"])
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise UsageError(
        f"{path} holds no results of {study.name}", action=f"run it first: kvwise study {study.name} --out {folder}"
    )


def write_figure_files(study: Study, results: Results, folder: Path) -> None:
    """The figure as SVG and as PNG. Raises UsageError where matplotlib is missing."""
    from kvwise.charts.style import house_style
    from kvwise.charts.write import write_figure

    with house_style():
        figure = study.draw(results)
    write_figure(figure, folder / FIGURE)
    write_figure(figure, folder / FIGURE_PNG)


def write_readme(study: Study, machine: dict[str, Any], conclusion: Conclusion, folder: Path) -> None:
    """The finding, the figure where there is one, what else was found, the table, and how it was measured."""
    about = study.about.read_text("utf-8").strip()
    parts = [f"# {conclusion.finding}", study.question]
    if (folder / FIGURE).exists():
        parts.append(f"![{conclusion.finding}]({FIGURE})")
    parts.append("\n".join(f"- {point}" for point in conclusion.points))
    parts.append(_markdown_table(conclusion.rows))
    measured = f"Measured by `kvwise study {study.name}` on {describe_briefly(machine)}"
    parts += [about, f"{measured}; all of it in [{RESULTS}]({RESULTS})."]
    (folder / README).write_text("\n\n".join(parts) + "\n", "utf-8")


def describe_briefly(machine: dict[str, Any]) -> str:
    """One line about a machine, for people."""
    threads = f"{machine['threads']} thread{'s' if machine['threads'] > 1 else ''}"
    busy = round(100 * machine["used_by_others"])
    return f"{machine['cpu']}, {threads}, {machine['isa']}, kvwise {machine['kvwise']}" + (
        f", {busy} % of the machine used by others meanwhile" if busy else ""
    )


def difference(row: LedgerRow) -> str:
    """By how much the prediction misses what was measured."""
    return "" if row.error is None else f"{100 * row.error:+.1f} %"


def _markdown_table(rows: tuple[LedgerRow, ...]) -> str:
    lines = ["| | predicted | measured | difference | by |", "| --- | ---: | ---: | ---: | --- |"]
    for row in rows:
        cells = (row.label, row.format_value(row.predicted), row.format_value(row.measured), difference(row))
        lines.append(f"| {' | '.join(cells)} | {row.source} |")
    return "\n".join(lines)
