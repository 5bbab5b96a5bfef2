"""What real runs took beside what was predicted: a short log beside a profile, and the correction that follows.

One JSON object per line: {"phase", "predicted_s", "measured_s"}. Only the newest lines count. A correction is the
median of measured / predicted, bounded, and how far the same runs were from it: robust against a run that was
disturbed, and nothing before there are a few. Predictions are logged as they were before any correction.
"""

from __future__ import annotations

import json
import math
import statistics
from contextlib import suppress
from pathlib import Path
from typing import Final

from kvwise.frozen import dataclass

PREFILL: Final = "prefill"
DECODE: Final = "decode"
COUNTED: Final = 32  # the newest runs of a phase
FEWEST: Final = 5  # below these nothing is corrected
BOUNDS: Final = (0.5, 2.0)  # a machine that is further off is another one, or busy: measure it anew
_KEPT_LINES: Final = 4 * COUNTED
_MAX_BYTES: Final = 2**18


@dataclass(frozen=True, slots=True)
class Correction:
    """`factor` for predictions of a phase. low, high: of measured / corrected, the middle 80 % of `runs`.

    error: the median distance, as a share.
    """

    factor: float = 1.0
    low: float = 1.0
    high: float = 1.0
    error: float = 0.0
    runs: int = 0

    @property
    def is_known(self) -> bool:
        return self.runs >= FEWEST


NO_CORRECTION: Final = Correction()


def log_path(profile: Path) -> Path:
    return profile.with_suffix(".runs")


def append_run(path: Path, phase: str, predicted_s: float, measured_s: float) -> None:
    """Note a run. A log that can't be written is left alone: nothing that matters to the user depends on it."""
    line = json.dumps({"phase": phase, "predicted_s": predicted_s, "measured_s": measured_s})
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        lines = _lines(path)
        if len(lines) > 2 * _KEPT_LINES:
            path.write_text("\n".join(lines[-_KEPT_LINES:]) + "\n", "utf-8")


def read_correction(path: Path, phase: str) -> Correction:
    """From the newest runs of `phase`. Lines that are no runs do not count."""
    ratios = [ratio for line in _lines(path) if (ratio := _ratio(line, phase)) is not None][-COUNTED:]
    if len(ratios) < FEWEST:
        return Correction(runs=len(ratios))
    factor = min(max(statistics.median(ratios), BOUNDS[0]), BOUNDS[1])
    left = sorted(ratio / factor for ratio in ratios)
    last = len(left) - 1
    error = statistics.median(abs(ratio - 1) for ratio in left)
    return Correction(factor, left[math.floor(0.1 * last)], left[math.ceil(0.9 * last)], error, len(ratios))


def _lines(path: Path) -> list[str]:
    try:
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            return []
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _ratio(line: str, phase: str) -> float | None:
    try:
        run = json.loads(line)
        if run["phase"] != phase:
            return None
        ratio = float(run["measured_s"]) / float(run["predicted_s"])
    except (ValueError, TypeError, KeyError, ZeroDivisionError, RecursionError):
        return None
    return ratio if math.isfinite(ratio) and ratio > 0 else None
