"""The GGUF container, versions 2 and 3, little-endian: metadata and the tensor list. Knows no field's meaning.

Every count, length and offset is checked against the bytes that are really there before anything is taken on
its word. Format: github.com/ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from kvwise.checkpoint.checked_file import CheckedFile
from kvwise.checkpoint.gguf_cursor import HeaderCursor
from kvwise.checkpoint.stored import FileTensor
from kvwise.errors import CheckpointError
from kvwise.frozen import dataclass
from kvwise.spec.dtypes import TENSOR_TYPE_BY_GGML_ID, TensorType
from kvwise.spec.fields import shown

GGUF_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_DEFAULT_ALIGNMENT: Final = 32
_MAX_ALIGNMENT: Final = 2**20

# Limits that no real model comes near, so that a hostile header is refused within a second.
_MAX_METADATA_KEYS: Final = 2**12
_MAX_TENSORS: Final = 2**14  # Llama 3.1 405B has 1,138
_MAX_ARRAY_COST: Final = 2**22  # of all arrays together, in scalars: a million strings; gpt-oss has 650,000
_MAX_ARRAY_DEPTH: Final = 4
_LISTED: Final = 256  # longer arrays of strings or integers are kept as they are stored until they are looked into
_MAX_KEY_BYTES: Final = 2**16 - 1
_MAX_TENSOR_NAME_BYTES: Final = 64
_MAX_DIMS: Final = 4

_I32: Final = 5
_STRING: Final = 8
_ARRAY: Final = 9
_BOOL: Final = 7
_ELEMENT_COSTS: Final = {_STRING: 4, _ARRAY: 64}  # what a string and an inner array cost in time, a scalar costing 1
_SCALAR_FORMATS: Final = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_SCALAR_STRUCTS: Final = {kind: struct.Struct(f"<{code}") for kind, code in _SCALAR_FORMATS.items()}

# ggml types that a file may hold and kvwise does not read: counted, and named where a model is refused to run.
# Sizes: gguf 0.19.0, constants.py, GGML_QUANT_SIZES.
_COUNTED_TYPES: Final = {
    ggml_id: TensorType(name, elements, nbytes, ggml_id)
    for ggml_id, name, elements, nbytes in (
        (9, "q8_1", 32, 40), (15, "q8_k", 256, 292), (16, "iq2_xxs", 256, 66), (17, "iq2_xs", 256, 74),
        (18, "iq3_xxs", 256, 98), (19, "iq1_s", 256, 50), (20, "iq4_nl", 32, 18), (21, "iq3_s", 256, 110),
        (22, "iq2_s", 256, 82), (23, "iq4_xs", 256, 136), (24, "i8", 1, 1), (25, "i16", 1, 2), (26, "i32", 1, 4),
        (27, "i64", 1, 8), (28, "f64", 1, 8), (29, "iq1_m", 256, 56), (34, "tq1_0", 256, 54), (35, "tq2_0", 256, 66),
        (39, "mxfp4", 32, 17), (40, "nvfp4", 64, 36),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufContents:
    """Metadata values are bool, int, float, str, lists of them, and for long arrays GgufStrings or array.array.

    Tensors are in file order.
    """

    version: int
    metadata: dict[str, object]
    tensors: tuple[FileTensor, ...]


def read_gguf(file: CheckedFile, *, counting: bool = False) -> GgufContents:
    """The header of a GGUF file: metadata and tensors, all checked against the file's size.

    counting: tensors may be of types that kvwise does not read, whose `type` is then None, and the file may be a
    piece of a model. Raises CheckpointError for anything that breaks the format or exceeds this module's limits.
    """
    cursor = HeaderCursor(file, _MAX_ARRAY_COST)
    version = _read_version(cursor)
    num_tensors, num_keys = cursor.u64(), cursor.u64()
    cursor.check_count("tensors", num_tensors, _MAX_TENSORS, least_bytes=24)
    cursor.check_count("metadata keys", num_keys, _MAX_METADATA_KEYS, least_bytes=13)
    metadata: dict[str, object] = {}
    for _ in range(num_keys):
        key = cursor.string("a metadata key", _MAX_KEY_BYTES)
        if not key:
            raise cursor.broken("it has an empty key")
        if key in metadata:
            raise cursor.broken(f"metadata key {shown(key)} is there twice")
        metadata[key] = _read_value(cursor, cursor.u32(), key)
    alignment = _alignment(cursor, metadata)
    entries = [_read_tensor_entry(cursor, counting) for _ in range(num_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors = tuple(_place(cursor, entry, data_start, alignment) for entry in entries)
    _check_names_and_overlaps(cursor, tensors)
    if not counting:
        _check_not_split(cursor, metadata)
    return GgufContents(version, metadata, tensors)


def _read_version(cursor: HeaderCursor) -> int:
    if cursor.file.size_bytes < 24:
        raise cursor.broken(f"it has {cursor.file.size_bytes} bytes", expected="at least 24")
    magic = bytes(cursor.fetch(4)[:4])
    cursor.position = 4
    if magic == GGUF_MAGIC[::-1]:
        raise _big_endian(cursor)
    if magic != GGUF_MAGIC:
        raise cursor.broken(f"it starts with {magic!r}", expected=f"{GGUF_MAGIC!r}")
    version = cursor.u32()
    if version not in _VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            raise _big_endian(cursor)
        raise CheckpointError(
            f"{cursor.file.path} is GGUF version {version}",
            expected="version 2 or 3",
            action="convert the model again with a current converter",
        )
    return version


def _big_endian(cursor: HeaderCursor) -> CheckpointError:
    return CheckpointError(
        f"{cursor.file.path} is a big-endian GGUF file", expected="little-endian", action="convert it again"
    )


def _read_value(cursor: HeaderCursor, kind: int, key: str, depth: int = 0) -> object:
    if kind == _STRING:
        return cursor.string(f"the value of {shown(key)}")
    if kind == _ARRAY:
        return _read_array(cursor, key, depth + 1)
    if kind not in _SCALAR_STRUCTS:
        raise cursor.broken(f"{shown(key)} has value type {kind}", expected="0 to 12")
    (value,) = cursor.unpack(_SCALAR_STRUCTS[kind])
    if kind == _BOOL:
        if value not in (0, 1):
            raise cursor.broken(f"{shown(key)} is a boolean of value {value}", expected="0 or 1")
        return bool(value)
    return value


def _read_array(cursor: HeaderCursor, key: str, depth: int) -> Sequence[object]:
    if depth > _MAX_ARRAY_DEPTH:
        raise cursor.broken(f"{shown(key)} nests arrays more than {_MAX_ARRAY_DEPTH} deep")
    kind, count = cursor.u32(), cursor.u64()
    if kind not in _SCALAR_STRUCTS and kind not in (_STRING, _ARRAY):
        raise cursor.broken(f"{shown(key)} is an array of value type {kind}", expected="0 to 12")
    least_bytes = {_STRING: 8, _ARRAY: 12}.get(kind) or _SCALAR_STRUCTS[kind].size
    cost = _ELEMENT_COSTS.get(kind, 1)
    cursor.check_count(f"elements in {shown(key)}", count, cursor.cost_left // cost, least_bytes=least_bytes)
    cursor.cost_left -= count * cost
    if kind == _STRING:
        strings = cursor.strings(count, shown(key))
        return strings if count > _LISTED else strings.tolist()
    if kind == _ARRAY:
        return [_read_array(cursor, key, depth + 1) for _ in range(count)]
    if kind == _I32 and count > _LISTED and sys.byteorder == "little":
        return array("i", cursor.take(4 * count))
    layout = struct.Struct(f"<{count}{_SCALAR_FORMATS[kind]}")
    values = list(cursor.unpack(layout))
    if kind == _BOOL:
        if not set(values) <= {0, 1}:
            raise cursor.broken(f"{shown(key)} holds booleans other than 0 and 1")
        return [bool(value) for value in values]
    return values


def _alignment(cursor: HeaderCursor, metadata: dict[str, object]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 8 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.broken(
            f"general.alignment is {shown(alignment)}", expected=f"a power of two from 8 to {_MAX_ALIGNMENT}"
        )
    return alignment


@dataclass(frozen=True, slots=True)
class _TensorEntry:
    name: str
    shape: tuple[int, ...]
    type: TensorType
    is_read: bool
    relative_offset: int


def _read_tensor_entry(cursor: HeaderCursor, counting: bool) -> _TensorEntry:
    name = cursor.string("a tensor name", _MAX_TENSOR_NAME_BYTES)
    num_dims = cursor.u32()
    if not 1 <= num_dims <= _MAX_DIMS:
        raise cursor.broken(f"tensor {shown(name)} has {num_dims} dimensions", expected=f"1 to {_MAX_DIMS}")
    # GGUF lists the contiguous dimension first.
    shape = tuple(reversed([cursor.u64() for _ in range(num_dims)]))
    if 0 in shape or math.prod(shape) >= 2**63:
        raise cursor.broken(f"tensor {shown(name)} has shape {shape}", expected="1 to 2**63 - 1 elements")
    type_id = cursor.u32()
    tensor_type, counted = TENSOR_TYPE_BY_GGML_ID.get(type_id), _COUNTED_TYPES.get(type_id)
    if tensor_type is None and not (counting and counted is not None):
        known = ", ".join(t.name for t in TENSOR_TYPE_BY_GGML_ID.values())
        stored_as = f"an unknown type {type_id}" if counted is None else counted.name
        raise CheckpointError(
            f"tensor {shown(name)} of {cursor.file.path} is stored as {stored_as}",
            expected=f"one of {known}",
            action="use a file quantized to one of these",
        )
    sizes = tensor_type or counted
    assert sizes is not None
    return _TensorEntry(name, shape, sizes, tensor_type is not None, cursor.u64())


def _place(cursor: HeaderCursor, entry: _TensorEntry, data_start: int, alignment: int) -> FileTensor:
    """The tensor's bytes in the file. Raises CheckpointError if they are misaligned or not all there."""
    row, block = entry.shape[-1], entry.type.block_elements
    if row % block:
        raise cursor.broken(
            f"tensor {shown(entry.name)} has rows of {row} elements",
            expected=f"a multiple of {block} for {entry.type.name}",
        )
    nbytes = math.prod(entry.shape) // block * entry.type.block_bytes
    if entry.relative_offset % alignment:
        raise cursor.broken(
            f"tensor {shown(entry.name)} starts at {entry.relative_offset}", expected=f"a multiple of {alignment}"
        )
    offset, size_bytes = data_start + entry.relative_offset, cursor.file.size_bytes
    if offset + nbytes > size_bytes:
        raise CheckpointError(
            f"{cursor.file.path} is truncated: tensor {shown(entry.name)} ends at byte {offset + nbytes}",
            expected=f"at most the file's {size_bytes} bytes",
            action="download it again",
        )
    read_as = entry.type if entry.is_read else None
    return FileTensor(entry.name, entry.shape, read_as, entry.type.name, cursor.file, offset, nbytes)


def _check_names_and_overlaps(cursor: HeaderCursor, tensors: tuple[FileTensor, ...]) -> None:
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise cursor.broken(f"tensor {shown(tensor.name)} is there twice")
        names.add(tensor.name)
    in_order = sorted(tensors, key=lambda t: t.offset)
    for before, after in pairwise(in_order):
        if before.offset + before.nbytes > after.offset:
            raise cursor.broken(f"tensors {shown(before.name)} and {shown(after.name)} overlap")


def _check_not_split(cursor: HeaderCursor, metadata: dict[str, object]) -> None:
    pieces = metadata.get("split.count", 1)
    if isinstance(pieces, int) and pieces > 1:
        raise CheckpointError(
            f"{cursor.file.path} is one of {pieces} pieces of a model",
            expected="a whole model in one file",
            action="join the pieces with llama-gguf-split --merge",
        )
