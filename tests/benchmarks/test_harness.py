"""The harness over processes of a fake peer: who fails fails alone, and everybody else is measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from peers.cells import Cell
from peers.harness import Effort, Round, Series
from peers.process import Seat

FAKE = Path(__file__).with_name("fake_peer.py")
EFFORT = Effort(repeats=2, retries=0, limit=1.0, patience_s=0.0)
CELLS = (Cell("prefill", 8), Cell("decode", 16, 2))

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are stopped and continued by signals")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Series]]:
    """By cell and label."""
    folder = tmp_path_factory.mktemp("peers")
    seats = [Seat(name, (sys.executable, str(FAKE)), folder / name, {}, 1) for name in ("fine", "dies", "no-load")]
    with Round(seats, 1000, EFFORT, folder / "logs") as round_:
        found = {cell.name: {s.label: s for s in series} for cell, series in round_.measure(CELLS)}
        assert round_.versions == {"fine": {"fake": "1"}, "dies": {"fake": "1"}}
    return found


def test_a_peer_that_works_has_all_samples_in_every_cell(measured: dict[str, dict[str, Series]]) -> None:
    assert list(measured) == [cell.name for cell in CELLS]
    for series in measured.values():
        assert len(series["fine"].kept()) == 2
        assert series["fine"].error is None
        assert all(sample.value > 0 for sample in series["fine"].samples)


def test_the_first_requests_tokens_are_kept(measured: dict[str, dict[str, Series]]) -> None:
    assert measured["decode 16 b2"]["fine"].ids[0] == 16


def test_a_peer_that_ends_has_what_it_gave_before_and_an_error_from_then_on(
    measured: dict[str, dict[str, Series]],
) -> None:
    assert len(measured["prefill 8"]["dies"].samples) == 2
    assert measured["prefill 8"]["dies"].error is None
    assert measured["decode 16 b2"]["dies"].samples == []
    assert measured["decode 16 b2"]["dies"].error == "dies ended with code 3"


def test_a_peer_that_can_not_load_says_why_in_every_cell(measured: dict[str, dict[str, Series]]) -> None:
    assert {series["no-load"].error for series in measured.values()} == {"RuntimeError: can't load"}


def test_starts_and_peaks_are_of_fresh_processes(tmp_path: Path) -> None:
    seats = [Seat(name, (sys.executable, str(FAKE)), FAKE, {}, 1) for name in ("one", "two")]
    with Round(seats, 1000, Effort(1, 0, 1.0, 0.0), tmp_path) as round_:
        starts = round_.measure_start(Cell("start", 16), keep_memory=False)
        peaks = round_.measure_start(Cell("memory", 512), keep_memory=True)
    assert all(0 < s.kept()[0].value < 60 for s in starts)
    assert all(s.kept()[0].value > 2**20 for s in peaks)
