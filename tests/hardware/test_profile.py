"""A profile in the cache is only believed if every figure in it can be one; anything else is measured anew."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.errors import NotMeasured
from kvwise.hardware.profile import DeviceProfile, StreamFigures, interpolated, load_profile, save_profile

STREAM = StreamFigures(((1.0, ((1e6, 1e-11), (1e8, 3e-11))), (64.0, ((1e6, 2e-10),))))
PROFILE = DeviceProfile(
    device="a machine",
    threads=2,
    source="a test",
    streams={"f32": STREAM},
    rows={"add": ((1e4, 1e-6), (1e6, 1e-4))},
    op_seconds=1e-6,
    step_seconds=None,
)
POINTS = st.lists(st.tuples(st.floats(1, 1e9), st.floats(1e-12, 1.0)), min_size=1, max_size=5, unique_by=lambda p: p[0])


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "profiles" / "p.json"
    save_profile(path, PROFILE)
    assert load_profile(path) == PROFILE
    assert list(path.parent.iterdir()) == [path]


BROKEN: list[dict[str, Any]] = [
    *({"op_seconds": value} for value in ("fast", 0, -1.0, 1e999, float("nan"), 5e-324, [])),
    *({"spread": value} for value in ("wide", -0.1, float("nan"), 1e999)),
    *({"streams": {"f32": figures}} for figures in (
        {}, None, {"by_rows": []}, {"by_rows": [[1, []]]}, {"by_rows": [[1, [[1, 0.0]]]]},
        {"by_rows": [[1, [[1, float("nan")]]]]}, {"by_rows": [[1, [[5, 1.0], [5, 2.0]]]]},
        {"by_rows": [[1, [[5, 1.0], [1, 2.0]]]]}, {"by_rows": [[2, [[1, 1.0]]], [1, [[1, 1.0]]]]},
    )),
    *({"rows": {"add": points}} for points in ([[1, -1.0]], [[2, 1.0], [1, 1.0]], [[1]], None)),
    {"streams": []}, {"version": 0}, {"unknown": 1}, {"device": [1]}, {"threads": "2"}, {"thorough": 1},
]  # fmt: skip


@pytest.mark.parametrize("change", BROKEN, ids=str)
def test_a_figure_that_cannot_be_one_makes_the_profile_none(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(dataclasses.asdict(PROFILE) | change))
    assert load_profile(path) is None


@pytest.mark.parametrize("text", ["", "null", "[1]", "{}", "{", "\xff", "[" * 100_000, '"' + "x" * 2**21])
def test_a_file_that_is_no_profile_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(text.encode("latin-1"))
    assert load_profile(path) is None


def test_what_is_no_file_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("fifo", "endless", "missing", "."):
        assert load_profile(tmp_path / name) is None


def test_a_profile_that_cannot_be_kept_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "profiles" / "p.json"
    path.mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        save_profile(path, PROFILE)
    assert list(path.parent.iterdir()) == [path]


@given(POINTS, st.floats(0.1, 1e10))
def test_between_points_lie_lines_and_beyond_them_the_ends(points: list[tuple[float, float]], at: float) -> None:
    points = sorted(points)
    value = interpolated(points, at)
    seconds = [s for _, s in points]
    assert min(seconds) * (1 - 1e-9) <= value <= max(seconds) * (1 + 1e-9)
    assert interpolated(points, points[0][0]) == points[0][1]
    assert interpolated(points, points[-1][0] * 2) == points[-1][1]


def test_a_stream_is_interpolated_by_rows_and_working_set() -> None:
    assert STREAM.seconds_per_byte(1, 0) == 1e-11
    assert STREAM.seconds_per_byte(1, 1e12) == 3e-11
    assert STREAM.seconds_per_byte(1, 2e6) == pytest.approx(1e-11 + 2e-11 * 0.5 / 0.99)  # a cache of 1e6 holds half
    assert STREAM.seconds_per_byte(64, 1e12) == 2e-10  # measured at one working set: for all
    assert STREAM.seconds_per_byte(32.5, 0) == pytest.approx((1e-11 + 2e-10) / 2)
    assert STREAM.seconds_per_byte(128, 0) == pytest.approx(4e-10)  # twice the rows, twice the time
    assert STREAM.bandwidth(0) == pytest.approx(1e11)
    assert STREAM.multiplied_bytes_per_second == pytest.approx(64 / 2e-10)


def test_ops_on_rows_take_longer_for_more_bytes() -> None:
    seconds = [PROFILE.row_seconds("add", moved) for moved in (0, 5e3, 1e4, 5e5, 1e6, 3e6)]
    assert seconds == sorted(seconds)
    assert seconds[0] == 0
    assert seconds[-1] == pytest.approx(3e-4)


def test_what_was_not_measured_is_named() -> None:
    for asked in (
        lambda: PROFILE.stream("q8_0"),
        lambda: PROFILE.row_seconds("glu", 1),
        lambda: PROFILE.figure("step_seconds"),
    ):
        with pytest.raises(NotMeasured, match="of a machine with 2 threads: not measured"):
            asked()
