"""What could be changed about a plan that does not do, one thing at a time: the one search behind every such advice.

A lever has other values of one setting, the mildest change first. Whoever searches says what holds with a value, by
planning anew: an advice is nothing else than a value for which that was true. Knows no plan.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from kvwise.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Lever:
    """`words(value)` is the changed setting for people.

    by_degrees: what holds with a value holds with all after it, so the mildest that does is found by bisection. Else
    values are alternatives, of which the first `most` that do are worth naming.
    """

    name: str
    values: Sequence[Any]
    words: Callable[[Any], str]
    by_degrees: bool = True
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One setting's other value, with which what was asked for holds."""

    lever: str
    value: Any
    words: str


def changes_that(holds: Callable[[str, Any], bool], levers: Iterable[Lever]) -> Iterator[Change]:
    """Changes with which it holds; `holds(lever's name, value)` plans anew."""
    for lever in levers:
        for value in _values_that(holds, lever):
            yield Change(lever.name, value, lever.words(value))


def format_advice(changes: Iterable[Change], purpose: str = "makes it fit") -> str:
    """What a refusal says to do."""
    words = ", ".join(change.words for change in changes)
    if words:
        return f"any one of these {purpose}: {words}"
    return f"no single change {purpose}: take a smaller model, or several changes together"


def _values_that(holds: Callable[[str, Any], bool], lever: Lever) -> Iterator[Any]:
    name, values = lever.name, lever.values
    if not lever.by_degrees:
        yield from islice((value for value in values if holds(name, value)), lever.most)
    elif values and holds(name, values[-1]):
        yield values[bisect_left(values, True, hi=len(values) - 1, key=lambda value: holds(name, value))]
