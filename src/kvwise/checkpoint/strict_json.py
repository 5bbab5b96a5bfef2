"""JSON as a model file may use it: one meaning per text, and a bounded size. Knows no field's meaning."""

from __future__ import annotations

import json
import re
from typing import Final, NoReturn

from kvwise.checkpoint.checked_file import CheckedFile
from kvwise.errors import CheckpointError
from kvwise.spec.fields import unique_keys

# At worst parsing takes 0.1 s and 25 MiB for each MiB of text, so hostile text is refused within a second. The
# format allows headers of 100 MB; a dense model's takes 0.15 MiB, a shard's of a large mixture less than 1 MiB.
MAX_JSON_BYTES: Final = 2**22

# An index names every tensor of a model: 90,000 in DeepSeek V3 (9 MiB), 210,000 in Kimi K2 with packed experts
# (20 MiB). It is two objects of names and short values, and held to that before it is parsed: then time follows the
# number of entries, 0.2 s for 100,000.
MAX_INDEX_BYTES: Final = 48 * 2**20
MAX_INDEX_ENTRIES: Final = 300_000
_MAX_INDEX_OBJECTS: Final = 16
_LONG_NUMBER: Final = re.compile(rb":\s*-?[\d.]{24}")


def parse_json_object(raw: bytes | bytearray, what: str, *, most_bytes: int = MAX_JSON_BYTES) -> dict[str, object]:
    """The object that `raw` holds. `what` names the text in messages.

    Raises CheckpointError for text that is not UTF-8 or not one JSON object, for duplicate keys, for NaN and
    Infinity, and for nesting that exhausts the parser. Python itself refuses integers of more than 4,300 digits.
    """
    if len(raw) > most_bytes:
        raise CheckpointError(f"{what} has {len(raw)} bytes", expected=f"at most {most_bytes}")
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=unique_keys,
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


def read_json_object(file: CheckedFile) -> dict[str, object]:
    """The object that a whole file holds. Raises CheckpointError as parse_json_object does."""
    if file.size_bytes > MAX_JSON_BYTES:
        raise CheckpointError(f"{file.path} has {file.size_bytes} bytes", expected=f"at most {MAX_JSON_BYTES}")
    return parse_json_object(file.pread(0, file.size_bytes), str(file.path))


def read_json_index(file: CheckedFile) -> dict[str, object]:
    """The object that a whole file holds, where it is an index: few objects of many names and short values.

    Raises CheckpointError as parse_json_object does, and for more or deeper contents than an index has.
    """
    if file.size_bytes > MAX_INDEX_BYTES:
        raise CheckpointError(f"{file.path} has {file.size_bytes} bytes", expected=f"at most {MAX_INDEX_BYTES}")
    raw = file.pread(0, file.size_bytes)
    if len(raw) > MAX_JSON_BYTES:
        nested = raw.count(b"{") + raw.count(b"[")
        entries = raw.count(b",") + 1
        if nested > _MAX_INDEX_OBJECTS or entries > MAX_INDEX_ENTRIES or _LONG_NUMBER.search(raw):
            raise CheckpointError(
                f"{file.path} is no index: {entries} entries in {nested} objects",
                expected=f"at most {MAX_INDEX_ENTRIES} names with short values in one weight_map",
            )
    return parse_json_object(raw, str(file.path), most_bytes=MAX_INDEX_BYTES)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")
