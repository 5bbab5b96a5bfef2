"""What is committed with each study: a text that its code concludes from its results, on a machine that is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwise.studies.folder import FIGURE, FIGURE_PNG, README, read_results, write_readme
from kvwise.studies.table import STUDIES, shipped_finding, shipped_folder

NAMES = list(STUDIES)


@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_what_the_code_concludes_from_the_results(name: str, tmp_path: Path) -> None:
    study, folder = STUDIES[name], shipped_folder(name)
    machine, results = read_results(study, folder)
    conclusion = study.conclude(results)
    assert shipped_finding(name) == conclusion.finding
    (tmp_path / FIGURE).touch()
    write_readme(study, machine, conclusion, tmp_path)
    assert (folder / README).read_text("utf-8") == (tmp_path / README).read_text("utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_the_machine_is_described_and_the_figure_is_there(name: str) -> None:
    folder = shipped_folder(name)
    machine, _ = read_results(STUDIES[name], folder)
    assert machine["cpu"]
    assert machine["memory_bytes"] > 0
    assert b"<dc:date>" not in (folder / FIGURE).read_bytes()
    assert (folder / FIGURE_PNG).stat().st_size < 2**18
