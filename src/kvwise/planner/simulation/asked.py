"""What a user asks to simulate: a load of one kind, and the same requests at any other rate or concurrency.

                     --rate r                       --concurrency n            neither
    a trace          its times stretched to r       its requests, n at a time  as it is
    no trace         drawn lengths, Poisson at r    drawn lengths              no load: only a search for rates

Knows no engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvwise.errors import UsageError
from kvwise.planner.simulation.lengths import AZURE_CODE, AZURE_CONVERSATIONS, TokenLengths
from kvwise.planner.simulation.load import (
    Load,
    RequestSize,
    closed_load,
    drawn_sizes,
    fixed_sizes,
    poisson_load,
    stretched,
)
from kvwise.planner.simulation.sessions import MOONCAKE, Sessions
from kvwise.planner.simulation.traces import read_trace

DEFAULT_REQUESTS: Final = 1000  # ten lie beyond p99
_DRAWN: Final[dict[str, TokenLengths]] = {"azure-conv": AZURE_CONVERSATIONS, "azure-code": AZURE_CODE}
_SESSIONS: Final[dict[str, Sessions]] = {"mooncake": MOONCAKE}
_FIXED: Final = re.compile(r"(\d{1,10}):(\d{1,10})")


@dataclass(frozen=True, slots=True)
class Asked:
    """`given`: the load to simulate, None where only a search was asked for. closed: loads are concurrencies."""

    sizes: tuple[RequestSize, ...]
    trace: Load | None
    source: str
    seed: int
    given: Load | None
    closed: bool

    @classmethod
    def of(
        cls,
        rate: float | None,
        concurrency: int | None,
        trace: Path | None,
        lengths: str,
        requests: int | None,
        seed: int,
    ) -> Asked:
        """Raises UsageError for what can't be asked together, InputError for a trace that can't be read."""
        if rate is not None and concurrency is not None:
            raise UsageError("--rate beside --concurrency", expected="one of the two")
        if requests is not None and requests < 1:
            raise UsageError(f"{requests} requests", expected="at least 1")
        found = None if trace is None else read_trace(trace, requests)
        if found is not None:
            sizes, source = found.sizes, found.source
        else:
            sizes, source = _sizes(lengths, DEFAULT_REQUESTS if requests is None else requests, seed)
        closed = concurrency is not None
        asked = cls(sizes, found, source, seed, found, closed)
        load = concurrency if closed else rate
        return asked if load is None else cls(sizes, found, source, seed, asked.at(load), closed)

    def at(self, load: float) -> Load:
        """The same requests at so many a second, or so many at a time."""
        if self.closed:
            return closed_load(self.sizes, int(load), f"{self.source}, {int(load)} at a time")
        if self.trace is not None:
            return stretched(self.trace, load)
        return poisson_load(self.sizes, load, self.seed, f"{self.source}, {load:g} requests/s")


def _sizes(lengths: str, count: int, seed: int) -> tuple[tuple[RequestSize, ...], str]:
    if lengths in _DRAWN:
        return drawn_sizes(_DRAWN[lengths], count, seed), f"drawn from {_DRAWN[lengths].source}"
    if lengths in _SESSIONS:
        return _SESSIONS[lengths].sample(count, seed), f"drawn like {_SESSIONS[lengths].source}"
    match = _FIXED.fullmatch(lengths)
    if match is None:
        known = ", ".join((*_DRAWN, *_SESSIONS))
        raise UsageError(f"lengths is {lengths!r}", expected=f"one of {known}, or PROMPT:OUTPUT such as 512:128")
    prompt, output = int(match[1]), int(match[2])
    return fixed_sizes(prompt, output, count), f"{prompt} and {output} tokens each"
