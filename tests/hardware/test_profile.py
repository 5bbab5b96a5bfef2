"""A profile in the cache is only believed if every figure in it can be one; anything else is measured anew."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvwise.hardware.profile import DeviceProfile, MatmulFigures, load_profile, save_profile

PROFILE = DeviceProfile(
    device="a machine",
    threads=2,
    source="a test",
    matmuls={"f32": MatmulFigures(((1 << 20, 2e10), (1 << 24, 1e10)), 1e11)},
    attention_bandwidth=1e10,
    attention_flops=1e10,
    elementwise_bandwidth=1e10,
    op_seconds=1e-6,
    step_seconds=None,
)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "profiles" / "p.json"
    save_profile(path, PROFILE)
    assert load_profile(path) == PROFILE
    assert list(path.parent.iterdir()) == [path]


BROKEN: list[dict[str, Any]] = [
    *({name: value} for name in ("op_seconds", "attention_bandwidth", "elementwise_bandwidth")
      for value in ("fast", 0, -1.0, 1e999, float("nan"), 5e-324, [])),
    *({"matmuls": {"f32": figures}} for figures in (
        {}, None, {"read_bandwidth": [], "flops": 1.0}, {"read_bandwidth": [[1, 0.0]], "flops": 1.0},
        {"read_bandwidth": [[1, 1.0]], "flops": 0.0}, {"read_bandwidth": [[1, float("nan")]], "flops": 1.0},
        {"read_bandwidth": [[5, 1.0], [5, 2.0]], "flops": 1.0}, {"read_bandwidth": [[5, 1.0], [1, 2.0]], "flops": 1.0},
    )),
    {"matmuls": []}, {"version": 0}, {"unknown": 1}, {"device": [1]}, {"threads": "2"},
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
