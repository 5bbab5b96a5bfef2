"""The one mechanism behind every table: model families, backends, tensor types, policies.

A row is a value, or an import path "package.module:name" that is loaded when it is first asked for; a package's names
are loaded the same way, so that who wants one of its modules does not wait for all.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
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
            row = cast(T, _loaded(row))
            self._rows[name] = row
        return row

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def names_loaded_late(package: dict[str, object], paths: Mapping[str, str]) -> Callable[[str], object]:
    """The __getattr__ (PEP 562) of a package whose globals these are: loads a name of `paths` and keeps it."""

    def load(name: str) -> object:
        if name not in paths:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        package[name] = _loaded(paths[name])
        return package[name]

    return load


def _loaded(path: str) -> object:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)
