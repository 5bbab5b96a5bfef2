"""JSON as a model file may use it: one meaning per text, and a bounded size. Knows no field's meaning."""

from __future__ import annotations

import json
from typing import Final, NoReturn

from kvwise.checkpoint.mapped_file import MappedFile
from kvwise.errors import CheckpointError
from kvwise.spec.fields import shown

# At worst parsing takes 0.1 s and 25 MiB for each MiB of text, so hostile text is refused within a second. The
# format allows headers of 100 MB; a dense model's takes 0.15 MiB, an index of 40,000 tensors less than 4 MiB.
MAX_JSON_BYTES: Final = 2**22


def parse_json_object(raw: bytes | bytearray, what: str) -> dict[str, object]:
    """The object that `raw` holds. `what` names the text in messages.

    Raises CheckpointError for text that is not UTF-8 or not one JSON object, for duplicate keys, for NaN and
    Infinity, and for nesting that exhausts the parser. Python itself refuses integers of more than 4,300 digits.
    """
    if len(raw) > MAX_JSON_BYTES:
        raise CheckpointError(f"{what} has {len(raw)} bytes", expected=f"at most {MAX_JSON_BYTES}")
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
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
