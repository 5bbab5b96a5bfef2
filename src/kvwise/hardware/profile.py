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

PROFILE_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class MatmulFigures:
    """Matmuls of one kind: weight type, and q8 or float32 activations. read_bandwidth: (working set in bytes, weight bytes/s) for one row, ascending;
    flops: FLOP/s for many rows. The working set is what a step reads again and again: what fits a cache is not read
    from memory."""

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

    matmuls: by kind, such as "q8_0*q8" or "f16". attention_bandwidth: KV bytes/s for one query; attention_flops: FLOP/s for many.
    elementwise_bandwidth: activation bytes/s of everything else. op_seconds, step_seconds: fixed costs.
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
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        content["matmuls"] = {
            name: MatmulFigures(tuple((int(n), float(b)) for n, b in m["read_bandwidth"]), float(m["flops"]))
            for name, m in content["matmuls"].items()
        }
        profile = DeviceProfile(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return profile if profile.version == PROFILE_VERSION else None


def save_profile(path: Path, profile: DeviceProfile) -> None:
    """Write atomically: a reader sees the old profile or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(asdict(profile), indent=1), "utf-8")
    partial.replace(path)
