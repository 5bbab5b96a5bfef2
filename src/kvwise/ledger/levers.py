"""What could be changed about a plan that does not do, one thing at a time: the one search behind every such advice.

A lever has other values of one setting, the mildest change first. Whoever searches says what holds with a value, by
planning anew: an advice is nothing else than a value for which that was true. Knows no plan.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

MONOTONE: Final = "monotone"  # what holds with a value holds with all after it: the first is found by bisection
ANY: Final = "any"  # values are alternatives, each of them worth saying


@dataclass(frozen=True, slots=True)
class Lever:
    """`words(value)` is the changed setting for people. order: MONOTONE or ANY."""

    name: str
    values: Sequence[Any]
    words: Callable[[Any], str]
    order: str = MONOTONE


@dataclass(frozen=True, slots=True)
class Change:
    """One setting's other value, with which what was asked for holds."""

    lever: str
    value: Any
    words: str

    def __str__(self) -> str:
        return self.words


def changes_that(holds: Callable[[Lever, Any], bool], levers: Sequence[Lever]) -> Iterator[Change]:
    """The mildest value of each lever with which it holds; every one of a lever of alternatives."""
    for lever in levers:
        for value in _values_that(holds, lever):
            yield Change(lever.name, value, lever.words(value))


def _values_that(holds: Callable[[Lever, Any], bool], lever: Lever) -> Iterator[Any]:
    values = lever.values
    if lever.order == ANY:
        yield from (value for value in values if holds(lever, value))
    elif values and holds(lever, values[-1]):
        yield values[bisect_left(values, True, hi=len(values) - 1, key=lambda value: holds(lever, value))]
