"""JSON of a model file has one meaning, or is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.checkpoint.checked_file import CheckedFile
from kvwise.checkpoint.strict_json import (
    MAX_INDEX_BYTES,
    MAX_INDEX_ENTRIES,
    MAX_JSON_BYTES,
    parse_json_object,
    read_json_index,
)
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


# An index


def index_text(entries: int, value: str = '"model-00001-of-00061.safetensors"') -> bytes:
    name = "model.layers.{}.mlp.experts.{}.down_proj.weight_scale_inv"
    listed = ",".join(f'"{name.format(i % 61, i)}":{value}' for i in range(entries))
    return f'{{"metadata":{{"total_size":1}},"weight_map":{{{listed}}}}}'.encode()


def read_index(folder: Path, raw: bytes) -> dict[str, object]:
    path = folder / "model.safetensors.index.json"
    path.write_bytes(raw)
    with CheckedFile(path) as file:
        return read_json_index(file)


def test_an_index_may_be_as_long_as_that_of_a_large_mixture(tmp_path: Path) -> None:
    raw = index_text(92_000)  # DeepSeek V3's has 91,991 tensors
    assert len(raw) > 2 * MAX_JSON_BYTES
    weight_map = read_index(tmp_path, raw)["weight_map"]
    assert isinstance(weight_map, dict)
    assert len(weight_map) == 92_000


@pytest.mark.parametrize(
    "raw",
    [
        b'{"weight_map":{' + b",".join(b'"%x":0' % i for i in range(MAX_INDEX_ENTRIES + 9)) + b"}}" + b" " * 2**22,
        b'{"weight_map":{"a":' + b"[" * 2**22,
        b'{"weight_map":{' + b",".join(b'"%x":{}' % i for i in range(400_000)) + b"}}",
        b'{"weight_map":{"a":' + b"9" * 4200 + b"}}" + b" " * 2**22,
        b'{"weight_map":{"a":' + b"1." + b"1" * 4200 + b"}}" + b" " * 2**22,
    ],
    ids=["too many entries", "a depth bomb", "objects", "a long integer", "a long fraction"],
)
def test_a_long_text_that_is_no_index_is_refused_before_it_is_parsed(raw: bytes, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no index"):
        read_index(tmp_path, raw)


def test_an_index_beyond_the_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    with path.open("wb") as sparse:
        sparse.truncate(MAX_INDEX_BYTES + 1)
    with CheckedFile(path) as file, pytest.raises(CheckpointError, match="at most"):
        read_json_index(file)
