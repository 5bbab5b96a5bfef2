"""What a plan is asked to keep: limits on its predicted latencies. Knows no machine and no search."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvwise.errors import UsageError

if TYPE_CHECKING:
    from kvwise.planner.latency import Latency

_LIMIT: Final = re.compile(r"\s*([a-z0-9]+)\s*=\s*(\d{1,9}(?:\.\d{1,9})?)\s*(us|ms|s|m)\s*")
_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_PREDICTED: Final = ("ttft", "tpot", "e2e")


def parse_limits(text: str, names: Collection[str]) -> dict[str, float]:
    """Seconds by name, from 'ttft=1s,tpot=50ms'. Raises UsageError."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        match = _LIMIT.fullmatch(part.lower())
        name = match[1] if match else ""
        if match is None or name not in names or name in limits or not float(match[2]):
            raise UsageError(
                f"the limits {text!r} can't be read",
                expected=f"limits such as ttft=1s,tpot=50ms, each of {', '.join(names)} once at most",
            )
        limits[name] = float(match[2]) * _UNITS[match[3]]
    return limits


@dataclass(frozen=True, slots=True)
class Target:
    """limits: seconds by "ttft", "tpot" or "e2e", of the response in the mean."""

    limits: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> Target:
        """From 'ttft=1s,tpot=50ms'. Raises UsageError."""
        return cls(parse_limits(text, _PREDICTED))

    def missed(self, latency: Latency) -> tuple[str, ...]:
        """Names of the limits that the predicted values exceed."""
        predicted = {
            "ttft": latency.ttft_s.value,
            "tpot": 0.0 if latency.tpot_s is None else latency.tpot_s.value,
            "e2e": latency.response_s.value,
        }
        return tuple(name for name, limit in self.limits.items() if predicted[name] > limit)
