"""A device profile: what one machine does, measured: time by kind of work, by how many rows and by working set.

Where a figure is missing the answer is NotMeasured, never a guess. Profiles are JSON files in the user's cache, one
per machine, thread count and version of the arithmetic.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from kvwise.errors import NotMeasured
from kvwise.frozen import dataclass

PROFILE_VERSION: Final = 6

_FIGURES: Final = ("op_seconds", "pass_seconds", "step_seconds", "request_seconds", "logit_seconds")
_SMALLEST_FIGURE: Final = 1e-18  # of a second; every time per byte is far above it
_LARGEST_FIGURE: Final = 1e18
_MAX_FILE_BYTES: Final = 2**20

Points = tuple[tuple[float, float], ...]  # (where, seconds), ascending


def interpolated(points: Sequence[tuple[float, float]], at: float) -> float:
    """Straight lines between the points, the first and the last one's value beyond them."""
    if at <= points[0][0]:
        return points[0][1]
    for (left, at_left), (right, at_right) in pairwise(points):
        if at <= right:
            return at_left + (at - left) / (right - left) * (at_right - at_left)
    return points[-1][1]


def _of_working_set(sets: Points, working_set_bytes: float) -> float:
    """Lines over 1 / working set: of a set larger than a cache, the cache still holds that part."""
    if working_set_bytes <= sets[0][0]:
        return sets[0][1]
    return interpolated([(-1 / size, seconds) for size, seconds in sets], -1 / working_set_bytes)


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """Seconds per byte of a stream that each of `rows` rows is multiplied with: weights, or K and V.

    by_rows: (rows, ((working set in bytes, seconds per byte), ...)), both ascending. The working set is what a step
    reads again and again: what fits a cache is not read from memory. Beyond the most rows seconds grow as the rows.
    """

    by_rows: tuple[tuple[float, Points], ...]

    def bandwidth(self, working_set_bytes: float) -> float:
        """Bytes/s for one row."""
        return 1 / self.seconds_per_byte(1, working_set_bytes)

    @property
    def multiplied_bytes_per_second(self) -> float:
        """Bytes x rows per second for the most rows, from a cache: what arithmetic reaches."""
        most = self.by_rows[-1][0]
        return most / self.seconds_per_byte(most, 0)

    def seconds_per_byte(self, rows: float, working_set_bytes: float) -> float:
        points = [(n, _of_working_set(sets, working_set_bytes)) for n, sets in self.by_rows]
        most, seconds = points[-1]
        return seconds * rows / most if rows > most else interpolated(points, rows)


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What one machine does with `threads` threads.

    streams: by kind: matmuls such as "q8_0*q8" or "f16", attention such as "kv f16 x 64" (type, width of a head; rows
    are queries per KV head). rows: by kind of op on rows, (activation bytes, seconds beside op_seconds). Fixed:
    op_seconds; pass_seconds each time that all threads are sent to work and waited for; step_seconds; request_seconds
    for each request of a step beyond the first, logit_seconds for each logit a token is chosen from. spread: how far
    repeated measurements are from their middle, as a share. thorough: measured at all points, not at a few.
    """

    device: str
    threads: int
    source: str
    streams: Mapping[str, StreamFigures] = field(default_factory=dict)
    rows: Mapping[str, Points] = field(default_factory=dict)
    op_seconds: float | None = None
    pass_seconds: float | None = None
    step_seconds: float | None = None
    request_seconds: float | None = None
    logit_seconds: float | None = None
    spread: float = 0.0
    thorough: bool = False
    version: int = PROFILE_VERSION

    def stream(self, kind: str) -> StreamFigures:
        if kind not in self.streams:
            raise self._missing(kind)
        return self.streams[kind]

    @property
    def memory_seconds_per_byte(self) -> float:
        """Of the fastest stream for one row, from memory. Raises NotMeasured without any stream."""
        if not self.streams:
            raise self._missing("reading from memory")
        return min(stream.seconds_per_byte(1, math.inf) for stream in self.streams.values())

    def row_seconds(self, kind: str, activation_bytes: float) -> float:
        """Of one op on rows, beside op_seconds. Beyond the most bytes measured, as many times more."""
        points = self.rows.get(kind)
        if not points:
            raise self._missing(f"{kind} of rows")
        most, seconds = points[-1]
        if activation_bytes > most:
            return seconds * activation_bytes / most
        return interpolated(((0.0, 0.0), *points), activation_bytes)

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
        content["streams"] = {name: _read_stream(stored) for name, stored in content["streams"].items()}
        content["rows"] = {kind: _read_points(points) for kind, points in content["rows"].items()}
        content["spread"] = float(content["spread"])
        for name in _FIGURES:
            content[name] = None if content[name] is None else _checked(content[name])
        profile = DeviceProfile(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return profile if profile.version == PROFILE_VERSION and _has_plain_fields(content) else None


def _has_plain_fields(content: Mapping[str, Any]) -> bool:
    types = {"device": str, "threads": int, "source": str, "thorough": bool}
    plain = all(type(content[name]) is kind for name, kind in types.items())
    return plain and 0 <= content["spread"] < _LARGEST_FIGURE


def _read_stream(stored: Mapping[str, Any]) -> StreamFigures:
    by_rows = tuple((_checked(rows), _read_points(sets)) for rows, sets in stored["by_rows"])
    _check_ascending([rows for rows, _ in by_rows])
    if not all(sets for _, sets in by_rows):
        raise ValueError("no working set")
    return StreamFigures(by_rows)


def _read_points(stored: Sequence[Any]) -> Points:
    points = tuple((_checked(where), _checked(seconds)) for where, seconds in stored)
    if points:
        _check_ascending([where for where, _ in points])
    return points


def _check_ascending(values: list[float]) -> None:
    if not values or values != sorted(set(values)):
        raise ValueError("points do not ascend")


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
