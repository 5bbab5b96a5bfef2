"""What is asked of a simulated engine: how long each request is, what it shares with others, and when it comes.

    open     each request has its time of arrival: Poisson at a rate, or as a trace has it
    closed   so many are asked at a time: the next comes when one is finished

Times are drawn once, for a rate of one request a second, and divided by the rate: two rates are compared on the same
requests in the same order, their times stretched (common random numbers). Knows no engine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from kvwise.errors import UsageError
from kvwise.planner.simulation.lengths import TokenLengths

MAX_REQUESTS: Final = 10_000_000
CONTENT_TOKENS: Final = 512  # of one content id: what Mooncake's traces hash
MAX_TOKENS: Final = 2**31 - 1  # of one prompt or output
_ARRIVAL_SEED: Final = 0x0A11  # so that arrivals and lengths of one seed are drawn apart


@dataclass(frozen=True, slots=True)
class RequestSize:
    """Tokens of one request. `content[i]` names its prompt's i-th CONTENT_TOKENS tokens: equal names, equal tokens.

    What `content` does not name, outputs included, is shared with nobody.
    """

    prompt_tokens: int
    output_tokens: int
    content: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in the order in which they come: at `arrivals_s`, ascending, or `concurrency` at a time.

    source: where lengths and times are from, for people. One of arrivals_s and concurrency is None.
    """

    sizes: tuple[RequestSize, ...]
    arrivals_s: tuple[float, ...] | None
    concurrency: int | None
    source: str

    @property
    def rate(self) -> float | None:
        """Requests/s that are offered; None in a closed loop, or where all come at once."""
        if self.arrivals_s is None or self.arrivals_s[-1] <= self.arrivals_s[0]:
            return None
        return (len(self.arrivals_s) - 1) / (self.arrivals_s[-1] - self.arrivals_s[0])


def fixed_sizes(prompt_tokens: int, output_tokens: int, count: int) -> tuple[RequestSize, ...]:
    """`count` equal requests that share nothing. Raises UsageError."""
    for name, value in (("prompt tokens", prompt_tokens), ("output tokens", output_tokens)):
        if not 1 <= value <= MAX_TOKENS:
            raise UsageError(f"{value} {name}", expected=f"1 to {MAX_TOKENS:,}")
    return (RequestSize(prompt_tokens, output_tokens),) * _checked_count(count)


def drawn_sizes(lengths: TokenLengths, count: int, seed: int = 0) -> tuple[RequestSize, ...]:
    """`count` requests of lengths drawn from `lengths`; they share nothing. Raises UsageError."""
    return tuple(RequestSize(*pair) for pair in lengths.sample(_checked_count(count), seed))


def poisson_load(sizes: Iterable[RequestSize], rate: float, seed: int = 0, source: str = "") -> Load:
    """Requests that come independently of each other, `rate` a second on average. Raises UsageError."""
    if not (math.isfinite(rate) and rate > 0):
        raise UsageError(f"a rate of {rate:g} requests/s", expected="a number above 0")
    sizes = tuple(sizes)
    rng = random.Random(seed ^ _ARRIVAL_SEED)
    gaps = (rng.expovariate(1.0) for _ in range(_checked_count(len(sizes))))
    return Load(sizes, tuple(time / rate for time in accumulate(gaps)), None, source)


def closed_load(sizes: Iterable[RequestSize], concurrency: int, source: str = "") -> Load:
    """`concurrency` requests at once, then one more for each that ends. Raises UsageError."""
    if concurrency < 1:
        raise UsageError(f"a concurrency of {concurrency}", expected="at least 1")
    sizes = tuple(sizes)
    _checked_count(len(sizes))
    return Load(sizes, None, concurrency, source)


def stretched(load: Load, rate: float) -> Load:
    """The same requests, their times stretched to `rate` requests/s on average. Raises UsageError."""
    offered = load.rate
    if offered is None or load.arrivals_s is None:
        raise UsageError("this load has no times of arrival to stretch", action="give a trace with several times")
    if not (math.isfinite(rate) and rate > 0):
        raise UsageError(f"a rate of {rate:g} requests/s", expected="a number above 0")
    first = load.arrivals_s[0]
    times = tuple((time - first) * (offered / rate) for time in load.arrivals_s)
    return Load(load.sizes, times, None, f"{load.source}, stretched to {rate:g} requests/s")


def _checked_count(count: int) -> int:
    if not 1 <= count <= MAX_REQUESTS:
        raise UsageError(f"{count} requests", expected=f"1 to {MAX_REQUESTS:,}")
    return count
