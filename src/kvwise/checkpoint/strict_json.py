"""JSON as a model file may use it: one meaning per text, and a bounded size. Knows no field's meaning."""

from __future__ import annotations

import json
import math
from typing import Final, NoReturn

from kvwise.checkpoint.mapped_file import MappedFile
from kvwise.errors import CheckpointError
from kvwise.spec.fields import shown

# Parsing takes up to 60 ms and 25 times the size in memory per MiB at worst. The largest index of a known
# model (DeepSeek-V3, 91,991 tensors) has 9 MiB.
MAX_JSON_BYTES: Final = 2**24
_MAX_INTEGER: Final = 2**64


def parse_json_object(raw: bytes | bytearray, what: str) -> dict[str, object]:
    """The object that `raw` holds. `what` names the text in messages.

    Raises CheckpointError for text that is not UTF-8 or not one JSON object, for duplicate keys, NaN, infinities,
    integers beyond 64 bits, and nesting that exhausts the parser.
    """
    if len(raw) > MAX_JSON_BYTES:
        raise CheckpointError(f"{what} has {len(raw)} bytes", expected=f"at most {MAX_JSON_BYTES}")
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            parse_int=_bounded_int,
        )
    except RecursionError:
        raise CheckpointError(f"{what} is nested too deeply") from None
    except UnicodeDecodeError as problem:
        raise CheckpointError(f"{what} is not UTF-8 ({problem.reason} at byte {problem.start})") from None
    except ValueError as problem:  # JSONDecodeError is one
        raise CheckpointError(f"{what} is not sound JSON: {problem}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} holds a {type(value).__name__}", expected="a JSON object")
    return value


def read_json_object(file: MappedFile) -> dict[str, object]:
    """The object that a whole file holds. Raises CheckpointError as parse_json_object does."""
    if file.size_bytes > MAX_JSON_BYTES:
        raise CheckpointError(f"{file.path} has {file.size_bytes} bytes", expected=f"at most {MAX_JSON_BYTES}")
    return parse_json_object(file.pread(0, file.size_bytes), str(file.path))


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {shown(key)} is there twice")
            seen.add(key)
    return out


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is not a finite number")
    return value


def _bounded_int(text: str) -> int:
    # The length is checked first: converting millions of digits takes for ever.
    if len(text) > 20 or abs(int(text)) >= _MAX_INTEGER:
        raise ValueError(f"{shown(text)} is beyond 64 bits")
    return int(text)
