"""A request as the user states it: prompt ids and sampling parameters. Frozen; knows nothing of its progress."""

from __future__ import annotations

import math
import operator
from dataclasses import field
from typing import SupportsFloat, SupportsIndex

from kvwise.errors import UsageError
from kvwise.frozen import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How output tokens are chosen and when they stop.

    temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 are off. `stop` strings end the text before them;
    `stop_ids` are added to the model's own set. The same seed gives the same tokens, whatever else runs; None draws
    a fresh seed per request.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 256
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = field(default_factory=frozenset)
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        for name in ("top_k", "max_tokens", "min_tokens", "seed"):
            if name != "seed" or self.seed is not None:
                object.__setattr__(self, name, _integer(name, getattr(self, name)))
        if not isinstance(self.ignore_eos, bool):
            raise UsageError(f"ignore_eos is {self.ignore_eos!r}", expected="True or False")
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_ids", _stop_ids(self.stop_ids))
        if self.top_k < 0:
            raise UsageError(f"top_k is {self.top_k}", expected="0 (off) or more")
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens is {self.max_tokens}", expected="at least 1")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise UsageError(f"min_tokens is {self.min_tokens}", expected=f"0 to max_tokens ({self.max_tokens})")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise UsageError(f"seed is {self.seed}", expected="0 to 2**64 - 1")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _integer(name: str, value: object) -> int:
    """Python's integer for whatever is one, numpy's included. Raises UsageError, for booleans too."""
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return operator.index(value)
    raise UsageError(f"{name} is {value!r}", expected="an integer")


def _stop_strings(stop: object) -> tuple[str, ...]:
    if not isinstance(stop, (tuple, list)):  # a text would be taken for its characters
        raise UsageError(f"stop is {stop!r}", expected="a tuple of strings")
    for text in stop:
        if not isinstance(text, str):
            raise UsageError(f"stop holds {text!r}", expected="strings")
        if not text:
            raise UsageError("a stop string is empty", expected="at least one character")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise UsageError(f"the stop string {text!r} has lone surrogates", expected="text that UTF-8 can hold")
    return tuple(stop)


def _stop_ids(stop_ids: object) -> frozenset[int]:
    if not isinstance(stop_ids, (frozenset, set, tuple, list)):
        raise UsageError(f"stop_ids is {stop_ids!r}", expected="a set of token ids")
    return frozenset(_integer("a stop id", token_id) for token_id in stop_ids)


def _check_range(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        raise UsageError(f"{name} is {value!r}", expected="a number")
    above = value > low if open_low else value >= low
    if not (math.isfinite(value) and above and value <= high):
        bracket = "above " if open_low else ""
        raise UsageError(f"{name} is {value}", expected=f"{bracket}{low:g} to {high:g}")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to answer. `salt` separates prefix caches."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    salt: str = ""
