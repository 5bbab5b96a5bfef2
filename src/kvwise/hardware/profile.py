"""A device profile: bandwidth by working set, arithmetic by kind of matmul, fixed costs; measured, or with a source.

Where a figure is missing the answer is NotMeasured, never a guess. Profiles are JSON files in the user's cache, one
per machine, thread count and version of the arithmetic.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from kvwise.errors import NotMeasured

PROFILE_VERSION: Final = 4

_FIGURES: Final = (
    "attention_bandwidth", "attention_flops", "elementwise_bandwidth", "op_seconds", "step_seconds", "pass_seconds"
)  # fmt: skip
_SMALLEST_FIGURE: Final = 1e-12  # of a second; every rate is far above it
_LARGEST_FIGURE: Final = 1e18  # FLOP/s; every time is far below it
_MAX_FILE_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class MatmulFigures:
    """Matmuls of one kind: weight type, and q8 or float32 activations.

    read_bandwidth: (working set in bytes, weight bytes/s) for one row, ascending; flops: FLOP/s for many rows. The
    working set is what a step reads again and again: what fits a cache is not read from memory.
    """

    read_bandwidth: tuple[tuple[int, float], ...]
    flops: float

    def bandwidth(self, working_set_bytes: float) -> float:
        """Weight bytes/s at this working set, interpolated between the measured ones."""
        points = self.read_bandwidth
        if working_set_bytes <= points[0][0]:
            return points[0][1]
        for (small, at_small), (large, at_large) in pairwise(points):
            if working_set_bytes <= large:
                share = (working_set_bytes - small) / (large - small)
                return at_small + share * (at_large - at_small)
        return points[-1][1]


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What one machine does with `threads` threads.

    matmuls: by kind, such as "q8_0*q8" or "f16". attention_bandwidth: KV bytes/s for one query; attention_flops:
    FLOP/s for many. elementwise_bandwidth: activation bytes/s of everything else. Fixed: op_seconds, step_seconds, and
    pass_seconds each time that all threads are sent to work and waited for.
    """

    device: str
    threads: int
    source: str
    matmuls: Mapping[str, MatmulFigures] = field(default_factory=dict)
    attention_bandwidth: float | None = None
    attention_flops: float | None = None
    elementwise_bandwidth: float | None = None
    op_seconds: float | None = None
    step_seconds: float | None = None
    pass_seconds: float | None = None
    version: int = PROFILE_VERSION

    def matmul(self, kind: str) -> MatmulFigures:
        if kind not in self.matmuls:
            raise self._missing(f"matmuls of kind {kind}")
        return self.matmuls[kind]

    def figure(self, name: str) -> float:
        """One of the single figures by its field's name. Raises NotMeasured when it is None."""
        value: float | None = getattr(self, name)
        if value is None:
            raise self._missing(name)
        return value

    def _missing(self, what: str) -> NotMeasured:
        return NotMeasured(f"{what} of {self.device} with {self.threads} threads: not measured")


def profile_path(cache_dir: Path, machine_key: str, threads: int) -> Path:
    return cache_dir / "profiles" / f"{machine_key}-{threads}t.json"


def load_profile(path: Path) -> DeviceProfile | None:
    """The profile at `path`; None where there is none, or one of another version, or a broken file."""
    try:
        if not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES:
            return None
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        content["matmuls"] = {name: _read_matmul(m) for name, m in content["matmuls"].items()}
        for name in _FIGURES:
            content[name] = None if content[name] is None else _checked(content[name])
        profile = DeviceProfile(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    sound = profile.version == PROFILE_VERSION and type(profile.device) is str and type(profile.threads) is int
    return profile if sound else None


def _read_matmul(stored: Mapping[str, Any]) -> MatmulFigures:
    points = tuple((int(n), _checked(bandwidth)) for n, bandwidth in stored["read_bandwidth"])
    sizes = [n for n, _ in points]
    if not sizes or sizes != sorted(set(sizes)):
        raise ValueError("working sets do not ascend")
    return MatmulFigures(points, _checked(stored["flops"]))


def _checked(figure: Any) -> float:
    """A figure that can be divided by. Raises ValueError."""
    value = float(figure)
    if not _SMALLEST_FIGURE <= value <= _LARGEST_FIGURE:  # false for NaN
        raise ValueError(f"{value} is no figure of a machine")
    return value


def save_profile(path: Path, profile: DeviceProfile) -> None:
    """Write atomically: a reader sees the old profile or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(asdict(profile), indent=1), "utf-8")
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
