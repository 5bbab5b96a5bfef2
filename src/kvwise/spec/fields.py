"""Typed reading of a config's fields: every value is checked before anything is built from it.

Owns the errors that name a field and its value. Knows no field's name or meaning: those are in hf_config.py and
gguf_config.py. A field that is absent, or null, takes the default it is read with; one without a default must be there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from kvwise.errors import SpecError

MAX_INTEGER: Final = 2**31 - 1  # above every size in any format read here; sizes are checked again by check_spec
_SHOWN_CHARS: Final = 60


def shown(value: object) -> str:
    """A short form of an untrusted value for an error message."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**64:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value) if isinstance(value, (str, int, float, type(None))) else type(value).__name__
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object's members, as json's object_pairs_hook. Raises ValueError for a key that is there twice."""
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {shown(key)} is there twice")
            seen.add(key)
    return out


class _Required:
    """Marks a field that has no default."""


_REQUIRED: Final = _Required()


class Fields:
    """One mapping of a config. `prefix` stands before every key; `where` names the mapping in errors.

    `defaulted` collects the names of fields that were read and not there, for the spec's notes.
    """

    def __init__(self, values: Mapping[str, object], where: str = "", prefix: str = "") -> None:
        self._values, self._where, self._prefix = values, where, prefix
        self.defaulted: list[str] = []

    def __contains__(self, name: str) -> bool:
        return self._values.get(self._prefix + name) is not None

    def name_of(self, name: str) -> str:
        """The field as an error names it: 'text_config.hidden_size'."""
        full = self._prefix + name
        return f"{self._where}.{full}" if self._where else full

    def wrong(self, name: str, expected: str) -> SpecError:
        """The error for a field whose value can't be used."""
        return SpecError(f"{self.name_of(name)} is {shown(self._values.get(self._prefix + name))}", expected=expected)

    def integer(self, name: str, default: int | _Required = _REQUIRED, *, low: int = 1, high: int = MAX_INTEGER) -> int:
        """An integer of low..high. Raises SpecError for anything else, booleans and 3.0 included."""
        value = self._get(name, default)
        if type(value) is not int or not low <= value <= high:
            raise self.wrong(name, f"an integer, {low} to {high}")
        return value

    def number(
        self, name: str, default: float | _Required = _REQUIRED, *, low: float = 0.0, open_low: bool = True
    ) -> float:
        """A finite number above `low` (or at it, with open_low=False)."""
        value = self._get(name, default)
        bound = f"a finite number {'above' if open_low else 'of at least'} {low:g}"
        if type(value) not in (int, float) or (isinstance(value, int) and abs(value) > 2**1000):
            raise self.wrong(name, bound)
        number = float(value)  # type: ignore[arg-type]
        if not math.isfinite(number) or number < low or (open_low and number == low):
            raise self.wrong(name, bound)
        return number

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str | _Required = _REQUIRED) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def optional_integer(self, name: str, *, low: int = 1) -> int | None:
        return self.integer(name, low=low) if name in self else None

    def optional_number(self, name: str, *, low: float = 0.0, open_low: bool = True) -> float | None:
        return self.number(name, low=low, open_low=open_low) if name in self else None

    def per_layer(self, name: str, num_layers: int, default: int | _Required = _REQUIRED) -> tuple[int, ...]:
        """An integer for every layer: one for all, or a list of `num_layers`."""
        value = self._values.get(self._prefix + name)
        if not isinstance(value, Sequence) or isinstance(value, str):
            return (self.integer(name, default),) * num_layers
        if len(value) != num_layers or not all(type(n) is int and 1 <= n <= MAX_INTEGER for n in value):
            raise self.wrong(name, f"a positive integer, or a list of one for each of the {num_layers} layers")
        return tuple(value)

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """A list of exactly `length` finite numbers above 0."""
        value = self._values.get(self._prefix + name)
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
            raise self.wrong(name, f"a list of {length} numbers")
        if not all(type(n) in (int, float) and 0 < n < 1e300 for n in value):  # false for NaN
            raise self.wrong(name, f"a list of {length} finite numbers above 0")
        return tuple(float(n) for n in value)

    def choices(self, name: str, length: int, known: Sequence[str]) -> tuple[str, ...] | None:
        """A list of `length` of the `known` words; None where there is none."""
        value = self._values.get(self._prefix + name)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
            raise self.wrong(name, f"a list of {length} times {' or '.join(known)}")
        if any(not isinstance(word, str) or word not in known for word in value):
            raise self.wrong(name, f"a list of {length} times {' or '.join(known)}")
        return tuple(value)

    def bits(self, name: str, length: int) -> tuple[bool, ...] | None:
        """A list of `length` times 0 or 1; None where there is none."""
        value = self._values.get(self._prefix + name)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
            raise self.wrong(name, f"a list of {length} times 0 or 1")
        if any(type(n) is not int or n not in (0, 1) for n in value):
            raise self.wrong(name, f"a list of {length} times 0 or 1")
        return tuple(n == 1 for n in value)

    def indices(self, name: str, length: int) -> frozenset[int] | None:
        """A list of numbers of 0..length-1 as a set; None where there is none."""
        value = self._values.get(self._prefix + name)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self.wrong(name, "a list of layers")
        if not all(type(n) is int and 0 <= n < length for n in value):
            raise self.wrong(name, f"a list of layers, 0 to {length - 1}")
        return frozenset(value)

    def mapping(self, name: str) -> Fields | None:
        """A nested mapping, or None where there is none."""
        value = self._values.get(self._prefix + name)
        if value is None:
            return None
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise self.wrong(name, "an object with string keys")
        return Fields(value, self.name_of(name))

    def names(self) -> tuple[str, ...]:
        """What is written, prefixes included."""
        return tuple(self._values)

    def raw(self, name: str) -> object:
        """The value as it is, None where there is none."""
        return self._values.get(self._prefix + name)

    def states(self, name: str) -> bool:
        """Whether the field is written at all, null included."""
        return self._prefix + name in self._values

    @property
    def is_empty(self) -> bool:
        return not self._values

    def _get(self, name: str, default: object) -> object:
        value = self._values.get(self._prefix + name)
        if value is not None:
            return value
        if isinstance(default, _Required):
            raise SpecError(f"{self.name_of(name)} is missing", action="use a complete config")
        self.defaulted.append(name)
        return default
