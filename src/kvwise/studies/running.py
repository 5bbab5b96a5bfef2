"""One run of a study, from the question to the folder: measure, write the results down, conclude, draw."""

from __future__ import annotations

from pathlib import Path

from kvwise.errors import UsageError
from kvwise.studies.folder import read_results, write_figure_files, write_readme, write_results
from kvwise.studies.machine import describe_machine, watching_others
from kvwise.studies.study import Ask, Conclusion, Study


def run_study(study: Study, ask: Ask, folder: Path, *, figure: bool = True) -> Conclusion:
    """Measure on this machine and write README.md, results.json and the figure into `folder`.

    Raises UsageError before anything is measured where a figure can't be drawn or a trace is not wanted.
    """
    if ask.trace is not None and not study.takes_trace:
        raise UsageError(f"{study.name} uses no trace", action="leave --trace out")
    if figure:
        from kvwise.charts.style import check_can_draw

        check_can_draw()
    machine = describe_machine(ask.threads)
    folder.mkdir(parents=True, exist_ok=True)
    with watching_others() as others:
        results = study.measure(ask)
    write_results(study, {**machine, "used_by_others": others.share}, results, folder)
    return conclude_study(study, folder, figure=figure)


def conclude_study(study: Study, folder: Path, *, figure: bool = True) -> Conclusion:
    """Write README.md and the figure anew from the results that are in `folder`. Raises UsageError without any."""
    machine, results = read_results(study, folder)
    conclusion = study.conclude(results)
    if figure:
        write_figure_files(study, results, folder)
    write_readme(study, machine, conclusion, folder)
    return conclusion
