"""The GGUF container: what a sound file gives, and that no broken one gives anything but one clear error."""

from __future__ import annotations

import struct
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.writers import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    GgufTensor,
    Typed,
    gguf_bytes,
    gguf_string,
    llama_gguf,
    llama_gguf_tensors,
    llama_metadata,
)
from kvwise.checkpoint.checked_file import CheckedFile
from kvwise.checkpoint.gguf import GgufContents, read_gguf
from kvwise.checkpoint.gguf_strings import GgufStrings
from kvwise.errors import CheckpointError, KvwiseError

F32_TENSOR = GgufTensor("t", [4, 2], 0, bytes(32))


def read(folder: Path, raw: bytes) -> GgufContents:
    path = folder / "m.gguf"
    path.write_bytes(raw)
    with CheckedFile(path) as file:
        return read_gguf(file)


def test_every_value_type_is_read(tmp_path: Path) -> None:
    values = {
        "u8": Typed(U8, 255), "i8": Typed(I8, -128), "u16": Typed(U16, 65535), "i16": Typed(I16, -32768),
        "u32": Typed(U32, 2**32 - 1), "i32": Typed(I32, -(2**31)), "u64": Typed(U64, 2**64 - 1),
        "i64": Typed(I64, -(2**63)), "f32": Typed(F32, 0.5), "f64": Typed(F64, 1e300), "yes": Typed(BOOL, 1),
        "no": Typed(BOOL, 0), "text": Typed(STRING, "grün 🌱"), "empty": Typed(STRING, ""),
        "ints": Typed(ARRAY, (I32, [1, -2, 3])), "flags": Typed(ARRAY, (BOOL, [1, 0])),
        "words": Typed(ARRAY, (STRING, ["a", "", "ß"])), "none": Typed(ARRAY, (STRING, [])),
        "nested": Typed(ARRAY, (ARRAY, [(U8, [1, 2]), (ARRAY, [(STRING, ["x"])])])),
    }  # fmt: skip
    metadata = read(tmp_path, gguf_bytes(list(values.items()), [F32_TENSOR])).metadata
    expected = {k: v.value for k, v in values.items() if v.kind not in (ARRAY, BOOL)}
    expected |= {"yes": True, "no": False, "ints": [1, -2, 3], "flags": [True, False], "words": ["a", "", "ß"]}
    expected |= {"none": [], "nested": [[1, 2], [["x"]]]}
    assert metadata == expected
    assert metadata["yes"] is True
    assert metadata["flags"] == [True, False]


def test_tensors_get_row_major_shapes_and_exact_ranges(tmp_path: Path) -> None:
    tensors = [GgufTensor("a", [64, 3], 8, bytes(3 * 68)), GgufTensor("b", [5], 1, bytes(10))]
    raw = gguf_bytes([], tensors)
    a, b = read(tmp_path, raw).tensors
    assert (a.name, a.shape, a.type_name, a.nbytes) == ("a", (3, 64), "q8_0", 204)
    assert (b.name, b.shape, b.type_name, b.nbytes) == ("b", (5,), "f16", 10)
    assert b.offset == a.offset + 224
    assert a.offset % 32 == 0


def test_version_2_is_read_like_3(tmp_path: Path) -> None:
    contents = read(tmp_path, gguf_bytes([("k", Typed(U8, 1))], [F32_TENSOR], version=2))
    assert (contents.version, contents.metadata) == (2, {"k": 1})


def test_alignment_of_the_file_is_obeyed(tmp_path: Path) -> None:
    tensors = [GgufTensor("a", [1], 0, b"\1\0\0\0"), GgufTensor("b", [1], 0, b"\2\0\0\0")]
    raw = gguf_bytes([("general.alignment", Typed(U32, 128))], tensors, alignment=128)
    a, b = read(tmp_path, raw).tensors
    assert a.offset % 128 == 0
    assert b.offset - a.offset == 128
    assert raw[b.offset] == 2


def test_a_vocabulary_longer_than_one_fetch_is_read_whole(tmp_path: Path) -> None:
    words = [f"{i}" * (i % 40) for i in range(20_000)]
    raw = gguf_bytes([("words", Typed(ARRAY, (STRING, words))), ("after", Typed(U8, 7))], [F32_TENSOR])
    assert read(tmp_path, raw).metadata == {"words": words, "after": 7}


def test_a_string_longer_than_one_fetch_is_read_whole(tmp_path: Path) -> None:
    words = ["x" * 300_000, "y", "z" * 200_000]
    raw = gguf_bytes([("words", Typed(ARRAY, (STRING, words)))], [F32_TENSOR])
    assert read(tmp_path, raw).metadata["words"] == words


WORDS = st.lists(
    st.one_of(
        st.sampled_from(["", "\0", "a\0\0\0\0\0\0\0", "x" * 127, "x" * 128, "é" * 64, "y" * 255, "y" * 256, "y" * 300]),
        st.text(max_size=20),
    ),
    max_size=40,
)


@given(WORDS, st.booleans())
def test_long_arrays_of_any_strings_are_read_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], common: bool
) -> None:
    """Looked into later, and cut at zero bytes where that is the same; whatever is in them, nothing is lost."""
    words = [*words, *(["word"] * 300 if common else [str(i) for i in range(2500)])]
    raw = gguf_bytes([("words", Typed(ARRAY, (STRING, words))), ("after", Typed(U8, 7))], [])
    metadata = read(tmp_path_factory.getbasetemp(), raw).metadata
    strings = metadata["words"]
    assert isinstance(strings, GgufStrings)
    strings.check()
    one_by_one = [strings[i] for i in range(-len(words), len(words))]
    assert (len(strings), one_by_one, metadata["after"]) == (len(words), words * 2, 7)
    assert (list(strings), strings[-1], strings[5:9]) == (words, words[-1], words[5:9])
    assert strings == words
    assert strings != [*words, ""]


@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xc3" + b"a" * 200])
def test_a_string_of_a_long_array_that_is_no_text_is_named_when_it_is_looked_into(tmp_path: Path, bad: bytes) -> None:
    words = [b"fine"] * 400
    words[357] = bad
    strings = read(tmp_path, gguf_bytes([("k", Typed(ARRAY, (STRING, words)))], [])).metadata["k"]
    assert isinstance(strings, GgufStrings)
    if len(bad) < 128:
        assert strings[356] == "fine"
    for look in (strings.check, lambda: strings[357], strings.tolist, strings.tolist):
        with pytest.raises(CheckpointError, match=r"m\.gguf .* element 357 of 'k' is not UTF-8"):
            look()


def test_long_arrays_of_integers_are_read_as_they_are(tmp_path: Path) -> None:
    numbers = [-(2**31), 2**31 - 1, *range(1000)]
    raw = gguf_bytes([("k", Typed(ARRAY, (I32, numbers))), ("after", Typed(U8, 7))], [])
    metadata = read(tmp_path, raw).metadata
    assert isinstance(metadata["k"], array)
    assert (metadata["k"].tolist(), metadata["after"]) == (numbers, 7)


def test_every_prefix_of_a_header_is_refused(tmp_path: Path) -> None:
    raw = llama_gguf()
    for length in range(len(gguf_bytes(llama_metadata(), []))):
        with pytest.raises(CheckpointError):
            read(tmp_path, raw[:length])


def test_every_shorter_file_is_refused_for_its_tensors(tmp_path: Path) -> None:
    raw = llama_gguf()
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with CheckedFile(path) as file:
        end = max(t.offset + t.nbytes for t in read_gguf(file).tensors)
    for length in (end - 1, end - 4096, end // 2):
        with pytest.raises(CheckpointError, match="truncated"):
            read(tmp_path, raw[:length])


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return gguf_string(name) + struct.pack("<I", kind) + value


def header(body: bytes, *, tensors: int = 0, keys: int = 1) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + body + bytes(64)


def nested_arrays(depth: int) -> bytes:
    return struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQB", U8, 1, 0)


HUGE = 2**63
BROKEN_HEADERS = {
    "empty": (b"", "empty"),
    "too short": (b"GGUF", "4 bytes"),
    "wrong magic": (gguf_bytes([], [], magic=b"GGML"), "GGML"),
    "big-endian magic": (gguf_bytes([], [], magic=b"FUGG"), "big-endian"),
    "big-endian version": (gguf_bytes([], [], version=3 << 24), "big-endian"),
    "version 0": (gguf_bytes([], [], version=0), "version 0"),
    "version 1": (gguf_bytes([], [], version=1), "version 1"),
    "version 99": (gguf_bytes([], [], version=99), "version 99"),
    "absurd tensor count": (gguf_bytes([], [], num_tensors=HUGE), "tensors"),
    "absurd key count": (gguf_bytes([], [], num_keys=2**64 - 1), "metadata keys"),
    "key count beyond the keys": (gguf_bytes([("k", Typed(U8, 1))], [], num_keys=2), "empty key"),
    "absurd key length": (header(struct.pack("<Q", HUGE)), "key claims"),
    "absurd string length": (header(key("k", STRING, struct.pack("<Q", HUGE))), "claims"),
    "absurd string length in an array": (
        header(key("k", ARRAY, struct.pack("<IQQ", STRING, 1, HUGE))),
        "past the end",
    ),
    "absurd array length": (header(key("k", ARRAY, struct.pack("<IQ", U8, HUGE))), "elements in 'k'"),
    "absurd string array length": (header(key("k", ARRAY, struct.pack("<IQ", STRING, 2**40))), "elements in 'k'"),
    "absurd nested array length": (header(key("k", ARRAY, struct.pack("<IQ", ARRAY, 2**40))), "elements in 'k'"),
    "arrays nested 5 deep": (header(key("k", ARRAY, nested_arrays(5))), "deep"),
    "arrays nested 1000 deep": (header(key("k", ARRAY, nested_arrays(1000))), "deep"),
    "unknown value type": (header(key("k", 13, b"")), "value type 13"),
    "unknown element type": (header(key("k", ARRAY, struct.pack("<IQ", 77, 0))), "value type 77"),
    "boolean of 2": (header(key("k", BOOL, b"\2")), "boolean"),
    "boolean of 2 in an array": (header(key("k", ARRAY, struct.pack("<IQB", BOOL, 1, 2))), "boolean"),
    "duplicate key": (gguf_bytes([("k", Typed(U8, 1)), ("k", Typed(U8, 1))], []), "'k' is there twice"),
    "key is not UTF-8": (gguf_bytes([(b"\xff", Typed(U8, 1))], []), "UTF-8"),
    "value is not UTF-8": (gguf_bytes([("k", Typed(STRING, b"\xc3"))], []), "UTF-8"),
    "element is not UTF-8": (gguf_bytes([("k", Typed(ARRAY, (STRING, [b"ok", b"\xed\xa0\x80"])))], []), "element 1"),
    "alignment 0": (gguf_bytes([("general.alignment", Typed(U32, 0))], []), "alignment"),
    "alignment 24": (gguf_bytes([("general.alignment", Typed(U32, 24))], []), "alignment"),
    "alignment as text": (gguf_bytes([("general.alignment", Typed(STRING, "32"))], []), "alignment"),
    "alignment beyond reason": (gguf_bytes([("general.alignment", Typed(U32, 2**31))], []), "alignment"),
    "a piece of a split model": (gguf_bytes([("split.count", Typed(U16, 3))], [F32_TENSOR]), "3 pieces"),
}  # fmt: skip
BROKEN_TENSORS = {
    "no dimensions": ([GgufTensor("t", [], 0, bytes(4))], "0 dimensions"),
    "five dimensions": ([GgufTensor("t", [1] * 5, 0, bytes(4))], "5 dimensions"),
    "zero dimension": ([GgufTensor("t", [4, 0], 0, b"")], "shape"),
    "product beyond 64 bits": ([GgufTensor("t", [2**32, 2**32], 0, bytes(4))], "shape"),
    "one absurd dimension": ([GgufTensor("t", [2**63], 0, bytes(4))], "shape"),
    "more elements than bytes": ([GgufTensor("t", [2**40], 0, bytes(4))], "truncated"),
    "partial block": ([GgufTensor("t", [33], 8, bytes(68))], "multiple of 32"),
    "partial superblock": ([GgufTensor("t", [32], 12, bytes(144))], "multiple of 256"),
    "unsupported type": ([GgufTensor("t", [256], 20, bytes(256))], "iq4_nl"),
    "unknown type": ([GgufTensor("t", [256], 4000, bytes(256))], "unknown type 4000"),
    "duplicate names": ([F32_TENSOR, F32_TENSOR], "'t' is there twice"),
    "misaligned": ([GgufTensor("t", [4], 0, bytes(64), 4)], "multiple of 32"),
    "offset beyond the file": ([GgufTensor("t", [4], 0, bytes(32), 2**20)], "truncated"),
    "offset beyond 64 bits of file": ([GgufTensor("t", [4], 0, bytes(32), 2**64 - 32)], "truncated"),
    "overlap": ([GgufTensor("a", [16], 0, bytes(64)), GgufTensor("b", [16], 0, bytes(64), 32)], "overlap"),
    "same bytes twice": ([GgufTensor("a", [16], 0, bytes(64)), GgufTensor("b", [16], 0, b"", 0)], "overlap"),
    "name too long": ([GgufTensor("n" * 65, [4], 0, bytes(32))], "tensor name claims 65"),
}


@pytest.mark.parametrize(("raw", "named"), BROKEN_HEADERS.values(), ids=BROKEN_HEADERS)
def test_a_broken_header_is_refused_by_name(tmp_path: Path, raw: bytes, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        read(tmp_path, raw)


@pytest.mark.parametrize(("tensors", "named"), BROKEN_TENSORS.values(), ids=BROKEN_TENSORS)
def test_a_broken_tensor_is_refused_by_name(tmp_path: Path, tensors: list[GgufTensor], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        read(tmp_path, gguf_bytes([], tensors))


def test_a_long_name_does_not_flood_the_message(tmp_path: Path) -> None:
    name = "k" * 60_000
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, gguf_bytes([(name, Typed(U8, 1)), (name, Typed(U8, 1))], []))
    assert len(str(caught.value)) < 400


SMALL = gguf_bytes(llama_metadata(tokenizer__ggml__tokens=None, tokenizer__ggml__token_type=None), [F32_TENSOR])


@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_give_contents_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    raw = bytearray(SMALL)
    for at, value in changes:
        raw[at] = value
    try:
        contents = read(tmp_path_factory.getbasetemp(), bytes(raw))
    except KvwiseError:
        return
    for tensor in contents.tensors:
        assert tensor.offset + tensor.nbytes <= len(raw)


def test_gguf_of_the_bundled_model_is_what_the_format_package_reads(bundled_model: Path) -> None:
    gguf = pytest.importorskip("gguf")
    theirs = gguf.GGUFReader(bundled_model)
    with CheckedFile(bundled_model) as file:
        ours = read_gguf(file)
    listed = {k: v.tolist() if isinstance(v, array) else v for k, v in ours.metadata.items()}
    assert listed == {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert [(t.name, t.shape, t.offset, t.nbytes) for t in ours.tensors] == [
        (t.name, tuple(int(n) for n in reversed(t.shape)), t.data_offset, t.n_bytes) for t in theirs.tensors
    ]


def test_the_tiny_llama_itself_is_sound(tmp_path: Path) -> None:
    assert len(read(tmp_path, llama_gguf()).tensors) == len(llama_gguf_tensors())
