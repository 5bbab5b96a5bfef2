"""JSON of a model file has one meaning, or is refused."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.checkpoint.strict_json import MAX_JSON_BYTES, parse_json_object
from kvwise.errors import CheckpointError

REFUSED = {
    "nothing": (b"", "JSON"),
    "an array": (b"[]", "JSON object"),
    "a text": (b'"{}"', "JSON object"),
    "null": (b"null", "JSON object"),
    "half an object": (b'{"a": 1', "JSON"),
    "two objects": (b"{}{}", "JSON"),
    "a comment": (b"{} // x", "JSON"),
    "a trailing comma": (b'{"a": 1,}', "JSON"),
    "a key twice": (b'{"a": 1, "a": 1}', "'a' is there twice"),
    "an inner key twice": (b'{"x": [{"b": 1, "b": 2}]}', "'b' is there twice"),
    "a key twice by escape": (b'{"a": 1, "\\u0061": 2}', "twice"),
    "NaN": (b'{"a": NaN}', "NaN"),
    "Infinity": (b'{"a": -Infinity}', "Infinity"),
    "an integer of a million digits": (b'{"a": ' + b"9" * 1_000_000 + b"}", "digits"),
    "bad UTF-8": (b'{"a": "\xff"}', "UTF-8"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "UTF-8"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "JSON"),
    "a depth bomb of arrays": (b'{"a": ' + b"[" * 1_000_000, "deep"),
    "a depth bomb of objects": (b'{"a":' * 500_000, "deep"),
    "a control character": (b'{"a": "\x01"}', "JSON"),
}


@pytest.mark.parametrize(("raw", "named"), REFUSED.values(), ids=REFUSED)
def test_unsound_text_is_refused_by_name(raw: bytes, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        parse_json_object(raw, "config.json")


def test_a_text_beyond_the_limit_is_refused_unread() -> None:
    with pytest.raises(CheckpointError, match="at most"):
        parse_json_object(b" " * (MAX_JSON_BYTES + 1), "config.json")


def test_sound_text_keeps_its_types() -> None:
    raw = '{"i": -7, "f": 1e-05, "big": 18446744073709551615, "t": true, "n": null, "s": "ü\\n", "l": [1, {}]}'
    parsed = parse_json_object(raw.encode(), "config.json")
    expected = {"i": -7, "f": 1e-05, "big": 2**64 - 1, "t": True, "n": None, "s": "ü\n", "l": [1, {}]}
    assert parsed == expected
    assert type(parsed["i"]) is int


@given(st.binary(max_size=60))
def test_any_bytes_give_an_object_or_a_clear_error(raw: bytes) -> None:
    try:
        parsed = parse_json_object(b"{" + raw, "x")
    except CheckpointError:
        return
    assert isinstance(parsed, dict)


@given(st.dictionaries(st.text(), st.floats() | st.integers()))
def test_written_values_come_back_unless_one_is_no_number(values: dict[str, float]) -> None:
    raw = json.dumps(values).encode()
    if all(math.isfinite(value) for value in values.values()):
        assert parse_json_object(raw, "x") == values
    else:
        with pytest.raises(CheckpointError, match="no JSON number"):
            parse_json_object(raw, "x")
