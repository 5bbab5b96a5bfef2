"""A device profile: bandwidth by working set, arithmetic by kind, fixed costs; each a measurement or a stated source.

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

PROFILE_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What one machine does with `threads` threads.

    read_bandwidth: (working set in bytes, bytes/s) pairs, ascending; a working set is what a step reads again and
    again, so that what fits a cache is not charged to memory.
    arithmetic: FLOP/s of matmuls of many rows by weight type. attention_x: the same two limits for attention.
    op_seconds, step_seconds: fixed costs. relative_error: of predicted against measured steps, when that is known.
    """

    device: str
    threads: int
    source: str
    read_bandwidth: tuple[tuple[int, float], ...] = ()
    arithmetic: Mapping[str, float] = field(default_factory=dict)
    elementwise_bandwidth: float = 0.0
    attention_flops: float = 0.0
    attention_bandwidth: float = 0.0
    op_seconds: float = 0.0
    step_seconds: float = 0.0
    relative_error: float = 0.0
    version: int = PROFILE_VERSION

    def bandwidth(self, working_set_bytes: float) -> float:
        """bytes/s for reading a working set of this size, interpolated between the measured ones.

        Raises NotMeasured when no bandwidth was measured.
        """
        if not self.read_bandwidth:
            raise NotMeasured(f"the read bandwidth of {self.device}", action="measure it: kvwise probe")
        sizes = self.read_bandwidth
        if working_set_bytes <= sizes[0][0]:
            return sizes[0][1]
        for (small, fast), (large, slow) in pairwise(sizes):
            if working_set_bytes <= large:
                share = (working_set_bytes - small) / (large - small)
                return fast + share * (slow - fast)
        return sizes[-1][1]

    def matmul_flops(self, weight_type: str) -> float:
        """FLOP/s of a matmul on weights stored as `weight_type`. Raises NotMeasured when there is no such figure."""
        if weight_type not in self.arithmetic:
            raise NotMeasured(
                f"the arithmetic of {self.device} on {weight_type} weights", action="measure it: kvwise probe"
            )
        return self.arithmetic[weight_type]


def profile_path(cache_dir: Path, machine_key: str, threads: int) -> Path:
    return cache_dir / "profiles" / f"{machine_key}-{threads}t.json"


def load_profile(path: Path) -> DeviceProfile | None:
    """The profile at `path`; None where there is none, or one of another version, or a broken file."""
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        content["read_bandwidth"] = tuple((int(n), float(b)) for n, b in content["read_bandwidth"])
        profile = DeviceProfile(**content)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return profile if profile.version == PROFILE_VERSION else None


def save_profile(path: Path, profile: DeviceProfile) -> None:
    """Write atomically: a reader sees the old profile or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(asdict(profile), indent=1), "utf-8")
    partial.replace(path)
