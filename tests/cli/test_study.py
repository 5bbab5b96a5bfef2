"""`kvwise study`: the list, a run and its folder, and what is refused before anything is measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from cli.conftest import Kvwise
from kvwise.errors import UsageError
from kvwise.ledger.rows import LedgerRow
from kvwise.registry import Table
from kvwise.studies import table
from kvwise.studies.study import Ask, Conclusion, Results, Study


class Measured:
    """A study that notes how often it is run."""

    def __init__(self, about: Path) -> None:
        self.asked: list[Ask] = []
        self.study = Study("tiny", "How much is it?", self.measure, self.conclude, self.draw, about)

    def measure(self, ask: Ask) -> Results:
        self.asked.append(ask)
        ask.say("measuring it")
        return {"much": 2.0}

    def conclude(self, results: Results) -> Conclusion:
        rows = (LedgerRow("much", 2.2, results["much"], "s", "formula / clock"),)
        return Conclusion(f"It is {results['much']:g}", rows, ("It is so.",))

    def draw(self, results: Results) -> Figure:
        figure = Figure()
        figure.subplots().plot([0, results["much"]])
        return figure


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    about = tmp_path / "about.md"
    about.write_text("## How\n\nWith care.\n")
    measured = Measured(about)
    monkeypatch.setattr(table, "STUDIES", Table("study", {"tiny": measured.study}, UsageError))
    monkeypatch.chdir(tmp_path)
    return measured


def test_without_a_name_all_are_listed_with_what_they_found(kvwise: Kvwise) -> None:
    listed = kvwise("study", "--json").json["studies"]
    names = [row["name"] for row in listed]
    assert {"what-fills-memory", "fewer-kv-heads", "pages", "training-prefill-decode"} <= set(names)
    table_of_all = kvwise("study")
    assert table_of_all.code == 0
    assert all(name in table_of_all.out for name in names)


@pytest.mark.parametrize("name", list(table.STUDIES))
def test_every_study_can_be_loaded_and_has_its_text(name: str) -> None:
    study = table.STUDIES[name]
    assert study.name == name
    assert study.question.endswith("?")
    assert study.about.read_text("utf-8").startswith("## ")


def test_an_unknown_name_is_refused_with_the_known_ones(kvwise: Kvwise) -> None:
    finished = kvwise("study", "nothing")
    assert finished.code == 2
    assert "fewer-kv-heads" in finished.err


def test_a_run_says_its_finding_and_leaves_a_folder(kvwise: Kvwise, tiny: Measured) -> None:
    finished = kvwise("study", "tiny", "--threads", "1")
    assert finished.code == 0
    assert finished.out.startswith("It is 2\n")
    assert "+10.0 %" in finished.out
    assert "tiny: measuring it" in finished.err
    folder = Path("kvwise-study-tiny")
    readme = (folder / "README.md").read_text("utf-8")
    assert readme.startswith("# It is 2\n")
    assert "| much | 2.20 s | 2.00 s | +10.0 % | formula / clock |" in readme
    assert "With care." in readme
    results = json.loads((folder / "results.json").read_text("utf-8"))
    assert results["results"] == {"much": 2.0}
    assert results["machine"]["threads"] == 1
    assert 0 <= results["machine"]["used_by_others"] <= 1
    assert (folder / "figure.svg").exists()
    assert (folder / "figure.png").exists()


def test_redraw_measures_nothing(kvwise: Kvwise, tiny: Measured) -> None:
    kvwise("study", "tiny", "--no-figure", "--out", "there")
    assert not Path("there/figure.svg").exists()
    finished = kvwise("study", "tiny", "--redraw", "--out", "there", "--json")
    assert finished.json["finding"] == "It is 2"
    assert Path("there/figure.svg").exists()
    assert len(tiny.asked) == 1


def test_redraw_without_results_says_how_to_get_them(kvwise: Kvwise, tiny: Measured) -> None:
    finished = kvwise("study", "tiny", "--redraw")
    assert finished.code == 2
    assert "kvwise study tiny --out" in finished.err


def test_a_trace_for_a_study_that_takes_none_is_refused(kvwise: Kvwise, tiny: Measured) -> None:
    finished = kvwise("study", "tiny", "--trace", "lengths.csv")
    assert finished.code == 2
    assert tiny.asked == []


def test_without_matplotlib_nothing_is_measured(
    kvwise: Kvwise, tiny: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    finished = kvwise("study", "tiny")
    assert finished.code == 2
    assert "pip install 'kvwise[charts]'" in finished.err
    assert tiny.asked == []
    assert kvwise("study", "tiny", "--no-figure").code == 0
