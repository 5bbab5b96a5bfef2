"""Runs correct predictions: by their middle, within bounds, and only where there are a few of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.hardware.run_log import (
    BOUNDS,
    COUNTED,
    DECODE,
    FEWEST,
    NO_CORRECTION,
    PREFILL,
    append_run,
    log_path,
    read_correction,
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return log_path(tmp_path / "profiles" / "native-abc-2t.json")


def note(log: Path, *ratios: float, phase: str = DECODE) -> None:
    for ratio in ratios:
        append_run(log, phase, 2.0, 2.0 * ratio)


def test_without_a_few_runs_nothing_is_corrected(log: Path) -> None:
    assert read_correction(log, DECODE) == NO_CORRECTION
    note(log, *(1.5,) * (FEWEST - 1))
    found = read_correction(log, DECODE)
    assert (found.factor, found.is_known) == (1.0, False)


def test_the_middle_corrects_and_a_disturbed_run_does_not(log: Path) -> None:
    note(log, 1.2, 1.18, 1.22, 1.2, 9.0)
    found = read_correction(log, DECODE)
    assert found.is_known
    assert found.factor == pytest.approx(1.2)
    assert found.error == pytest.approx(0.02 / 1.2)
    assert found.low <= 1 <= found.high


def test_phases_are_apart(log: Path) -> None:
    note(log, *(1.5,) * FEWEST, phase=PREFILL)
    note(log, *(0.8,) * FEWEST, phase=DECODE)
    assert read_correction(log, PREFILL).factor == pytest.approx(1.5)
    assert read_correction(log, DECODE).factor == pytest.approx(0.8)


def test_only_the_newest_runs_count(log: Path) -> None:
    note(log, *(1.9,) * 50, *(1.1,) * COUNTED)
    assert read_correction(log, DECODE).factor == pytest.approx(1.1)
    assert read_correction(log, DECODE).runs == COUNTED


def test_a_log_does_not_grow_without_end(log: Path) -> None:
    note(log, *(1.0,) * 1000)
    assert len(log.read_text().splitlines()) < 300


@given(st.lists(st.floats(1e-3, 1e3), min_size=FEWEST, max_size=20))
def test_a_correction_is_bounded(tmp_path_factory: pytest.TempPathFactory, ratios: list[float]) -> None:
    log = tmp_path_factory.mktemp("runs") / "p.runs"
    note(log, *ratios)
    found = read_correction(log, DECODE)
    assert BOUNDS[0] <= found.factor <= BOUNDS[1]
    assert 0 < found.low <= found.high


def test_lines_that_are_no_runs_do_not_count(log: Path) -> None:
    note(log, *(1.1,) * FEWEST)
    with log.open("a") as file:
        file.write('nonsense\n[]\n{"phase": "decode"}\n{"phase": "decode", "predicted_s": 0, "measured_s": 1}\n')
        file.write('{"phase": "decode", "predicted_s": 1, "measured_s": NaN}\n')
    assert read_correction(log, DECODE).factor == pytest.approx(1.1)


def test_a_log_that_can_not_be_read_or_written_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    append_run(tmp_path / "file" / "p.runs", DECODE, 1.0, 1.0)
    folder = tmp_path / "folder.runs"
    folder.mkdir()
    append_run(folder, DECODE, 1.0, 1.0)
    assert read_correction(folder, DECODE) == NO_CORRECTION
    (tmp_path / "bytes.runs").write_bytes(b"\xff\xfe")
    assert read_correction(tmp_path / "bytes.runs", DECODE) == NO_CORRECTION
