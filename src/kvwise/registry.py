"""The one mechanism behind every table: model families, backends, tensor types, policies.

A row is a value, or an import path "package.module:name" that is loaded when it is first asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar, cast

from kvwise.errors import InputError

T = TypeVar("T")


class Table(Generic[T]):
    """Names to values, in order. An unknown name is refused with the list of known ones."""

    def __init__(self, what: str, rows: Mapping[str, T | str], error: type[InputError] = InputError) -> None:
        self._what, self._error = what, error
        self._rows: dict[str, T | str] = dict(rows)

    def __getitem__(self, name: str) -> T:
        if name not in self:  # what is no text, and perhaps not hashable, included
            raise self._error(f"unknown {self._what} {name!r}", expected=f"one of {', '.join(sorted(self._rows))}")
        row = self._rows[name]
        if isinstance(row, str):
            module, _, attribute = row.partition(":")
            row = getattr(importlib.import_module(module), attribute)
            self._rows[name] = row
        return cast(T, row)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)
