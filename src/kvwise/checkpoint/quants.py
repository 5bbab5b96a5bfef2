"""Blocks of quantized numbers, taken apart and put together in numpy: the readable truth. Knows no tensor names.

Every block type means: value = scale * code + offset, with one scale (and offset) per group of 16 or 32 elements.
Layouts: github.com/ggml-org/ggml, src/ggml-common.h (structs) and src/ggml-quants.c (element order, rounding).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kvwise.errors import SpecError
from kvwise.registry import Table
from kvwise.spec.dtypes import TensorType

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Rows of n elements as small integers: codes [rows, n]; scales, and offsets if any, [rows, n / group].

    Products scale * code are exact in float32: 11 bits of half precision, 6 of sub-scale, 6 or 8 of code.
    """

    codes: NDArray[np.int8]
    scales: Float32
    offsets: Float32 | None

    @property
    def group_elements(self) -> int:
        return int(self.codes.shape[1] // self.scales.shape[1])


def dequantize(raw: Bytes, tensor_type: TensorType, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Rows of raw bytes [rows, row_bytes] as numbers [rows, n] of `dtype` (float32 or float64), in that precision.

    Raises SpecError for a row that is not a whole number of blocks.
    """
    if tensor_type.is_float:
        return _widen(_whole_blocks(raw, tensor_type), tensor_type).astype(dtype)
    parts = unpack(raw, tensor_type)
    rows, groups = parts.scales.shape
    values = parts.codes.reshape(rows, groups, -1).astype(dtype)
    with np.errstate(invalid="ignore", over="ignore"):  # infinities that a file holds stay what they are
        values *= parts.scales[:, :, None]
        if parts.offsets is not None:
            values += parts.offsets[:, :, None]
    return values.reshape(rows, -1)


def unpack(raw: Bytes, tensor_type: TensorType) -> Unpacked:
    """Rows of blocks [rows, row_bytes] as codes, scales and offsets.

    Raises SpecError for a float type, or for a row that is not a whole number of blocks.
    """
    rows, header = raw.shape[0], tensor_type.row_header_bytes
    blocks = _whole_blocks(raw[:, header:], tensor_type).reshape(-1, tensor_type.block_bytes)
    if header:  # the only such type: one scale for the row
        return Unpacked(blocks.view(np.int8).reshape(rows, -1), _float(raw[:, :header]), None)
    with np.errstate(invalid="ignore"):
        codes, scales, offsets = _UNPACKERS[tensor_type.name](blocks)
    return Unpacked(
        codes.astype(np.int8).reshape(rows, -1),
        scales.reshape(rows, -1),
        None if offsets is None else offsets.reshape(rows, -1),
    )


def quantize(values: NDArray[Any], tensor_type: TensorType) -> Bytes:
    """Numbers [rows, n] as raw bytes [rows, row_bytes], rounded as ggml's reference quantizers do; ours likewise.

    Writes f32, f16, bf16, q8_0, q4_0, q4_1, i8, i4_64 and i4_128; raises SpecError for other types and for rows of
    partial blocks.
    """
    rows, n = values.shape
    nbytes = tensor_type.row_bytes(n)
    one_scale = n if tensor_type.row_header_bytes else tensor_type.block_elements
    blocks = np.ascontiguousarray(values, np.float32).reshape(-1, one_scale)
    with np.errstate(invalid="ignore", over="ignore"):
        return QUANTIZERS[tensor_type.name](blocks).reshape(rows, nbytes)


def _float(raw: Bytes) -> Float32:
    return np.ascontiguousarray(raw).view("<f4").astype(np.float32)


_Parts = tuple[NDArray[Any], Float32, Float32 | None]  # codes [blocks, n], scales and offsets [blocks, groups]


def _unpack_q4_0(b: Bytes) -> _Parts:
    """d:f16, 16 bytes of nibbles."""
    return _nibbles(b[:, 2:]).astype(np.int8) - 8, _half(b, 0), None


def _unpack_q4_1(b: Bytes) -> _Parts:
    """d:f16, m:f16, 16 bytes of nibbles."""
    return _nibbles(b[:, 4:]), _half(b, 0), _half(b, 2)


def _unpack_q5_0(b: Bytes) -> _Parts:
    """d:f16, 32 fifth bits, 16 bytes of nibbles."""
    return (_nibbles(b[:, 6:]) | _bits(b[:, 2:6]) << 4).astype(np.int8) - 16, _half(b, 0), None


def _unpack_q5_1(b: Bytes) -> _Parts:
    """d:f16, m:f16, 32 fifth bits, 16 bytes of nibbles."""
    return _nibbles(b[:, 8:]) | _bits(b[:, 4:8]) << 4, _half(b, 0), _half(b, 2)


def _unpack_q8_0(b: Bytes) -> _Parts:
    """d:f16, 32 signed bytes."""
    return b[:, 2:].view(np.int8), _half(b, 0), None


def _unpack_q2_k(b: Bytes) -> _Parts:
    """16 bytes of scale (low nibble) and min (high), 64 bytes of two-bit codes, d:f16, dmin:f16."""
    scales, mins = b[:, :16] & 15, b[:, :16] >> 4
    return _bit_pairs(b[:, 16:80]), _half(b, 80) * scales, _half(b, 82) * -mins.astype(np.float32)


def _unpack_q3_k(b: Bytes) -> _Parts:
    """32 bytes of third bits, 64 bytes of two-bit codes, 12 bytes of sixteen 6-bit scales, d:f16.

    Scale i has its low nibble in byte i % 8 (low nibbles first), its high pair in byte 8 + i % 4.
    """
    packed = b[:, 96:108]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high = _planes(packed[:, 8:], 2, 4).reshape(-1, 16)
    scales = (low | high << 4).astype(np.float32) - 32
    third = _planes(b[:, :32], 1, 8).reshape(-1, 256)
    return (_bit_pairs(b[:, 32:96]) | third << 2).astype(np.int8) - 4, _half(b, 108) * scales, None


def _unpack_q4_k(b: Bytes) -> _Parts:
    """d:f16, dmin:f16, 12 bytes of eight 6-bit scales and mins, 128 bytes of nibbles in runs of 32."""
    scales, mins = _six_bit_scales(b[:, 4:16])
    codes = _nibbles(b[:, 16:].reshape(-1, 4, 32)).reshape(-1, 256)
    return codes, _half(b, 0) * scales, _half(b, 2) * -mins


def _unpack_q5_k(b: Bytes) -> _Parts:
    """As q4_k, with 32 bytes of fifth bits before the nibbles: bit g of byte l belongs to element l of group g."""
    scales, mins = _six_bit_scales(b[:, 4:16])
    codes = _nibbles(b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 256)
    fifth = _planes(b[:, 16:48], 1, 8).reshape(-1, 256)
    return codes | fifth << 4, _half(b, 0) * scales, _half(b, 2) * -mins


def _unpack_q6_k(b: Bytes) -> _Parts:
    """128 bytes of low nibbles, 64 bytes of high pairs, 16 signed scales, d:f16; each half of 128 by itself."""
    low = _nibbles(b[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
    codes = (low | _bit_pairs(b[:, 128:192]) << 4).astype(np.int8) - 32
    return codes, _half(b, 208) * b[:, 192:208].view(np.int8).astype(np.float32), None


def _unpack_i4(b: Bytes) -> _Parts:
    """d:f16, then 16 bytes of nibbles for every 32 elements."""
    return _nibbles(b[:, 2:].reshape(len(b), -1, 16)).reshape(len(b), -1).astype(np.int8) - 8, _half(b, 0), None


_UNPACKERS: Final[Table[Callable[[Bytes], _Parts]]] = Table(
    "block type",
    {
        "q4_0": _unpack_q4_0,
        "q4_1": _unpack_q4_1,
        "q5_0": _unpack_q5_0,
        "q5_1": _unpack_q5_1,
        "q8_0": _unpack_q8_0,
        "q2_k": _unpack_q2_k,
        "q3_k": _unpack_q3_k,
        "q4_k": _unpack_q4_k,
        "q5_k": _unpack_q5_k,
        "q6_k": _unpack_q6_k,
        "i4_64": _unpack_i4,
        "i4_128": _unpack_i4,
    },
    SpecError,
)


def _half(blocks: Bytes, at: int) -> Float32:
    """The half-precision number at byte `at` of each block, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """All low nibbles of the last axis, then all high ones: [..., k] -> [..., 2k]."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _bits(packed: Bytes) -> Bytes:
    """Bits of the last axis, lowest first: [..., k] -> [..., 8k]."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _planes(packed: Bytes, width: int, count: int) -> Bytes:
    """Fields of `width` bits, lowest first, each across all bytes: [..., k] -> [..., count, k]."""
    shifts = np.arange(0, width * count, width, dtype=np.uint8)
    planes: Bytes = packed[..., None, :] >> shifts[:, None] & (2**width - 1)
    return planes


def _bit_pairs(packed: Bytes) -> Bytes:
    """Two-bit codes of 256 elements in halves of 128: [blocks, 64] -> [blocks, 256]."""
    return _planes(packed.reshape(-1, 2, 32), 2, 4).reshape(-1, 256)


def _six_bit_scales(packed: Bytes) -> tuple[Float32, Float32]:
    """Eight scales and eight mins from 12 bytes, each [blocks, 8].

    Bytes 0-3 and 4-7 hold the first four scales and mins in their low six bits. The last four have their low
    nibbles in bytes 8-11 (scale low, min high) and their upper pairs in the top bits of bytes 0-3 and 4-7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    mins = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales.astype(np.float32), mins.astype(np.float32)


def _whole_blocks(raw: Bytes, tensor_type: TensorType) -> Bytes:
    if raw.shape[1] % tensor_type.block_bytes:
        raise SpecError(
            f"a row of {raw.shape[1]} bytes is not a whole number of {tensor_type.name} blocks",
            expected=f"a multiple of {tensor_type.block_bytes}",
        )
    return np.ascontiguousarray(raw)


def _widen(raw: Bytes, tensor_type: TensorType) -> Float32:
    if tensor_type.name == "bf16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return raw.view({"f32": "<f4", "f16": "<f2"}[tensor_type.name]).astype(np.float32)


def _quantize_f16(x: Float32) -> Bytes:
    return x.astype("<f2").view(np.uint8)


def _quantize_bf16(x: Float32) -> Bytes:
    """Rounded to nearest even. A NaN keeps its upper bits and becomes quiet, so that it stays one."""
    bits = x.view(np.uint32)
    rounded = bits + (0x7FFF + (bits >> 16 & 1))
    quiet = bits | 0x400000
    return (np.where(np.isnan(x), quiet, rounded) >> 16).astype("<u2").view(np.uint8)


def _eight_bits(x: Float32) -> tuple[Float32, Bytes]:
    """A row's scale [rows, 1] and its codes, the largest 127; halves go away from zero."""
    scale: Float32 = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = np.abs(x * _reciprocal(scale))
    whole = np.floor(scaled)
    whole += scaled - whole >= 0.5
    return scale, np.copysign(whole, x).astype(np.int8).view(np.uint8)


def _quantize_q8_0(x: Float32) -> Bytes:
    scale, codes = _eight_bits(x)
    return np.concatenate([_quantize_f16(scale), codes], axis=1)


def _quantize_i8(x: Float32) -> Bytes:
    scale, codes = _eight_bits(x)
    return np.concatenate([scale.astype("<f4").view(np.uint8), codes], axis=1)


def _quantize_q4_0(x: Float32) -> Bytes:
    """The element farthest from zero becomes code 0, that is -8 scales. i4_64 and i4_128: the same in longer blocks."""
    farthest = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1)
    scale = farthest / np.float32(-8)
    codes = x.astype(np.float64) * _reciprocal(scale) + 8.5
    return np.concatenate([_quantize_f16(scale), _four_bit_codes(codes.reshape(-1, 32)).reshape(len(x), -1)], axis=1)


def _quantize_q4_1(x: Float32) -> Bytes:
    # Of zeros with two signs the first counts, as in a loop that looks for more or less.
    low = np.take_along_axis(x, x.argmin(axis=1, keepdims=True), axis=1)
    high = np.take_along_axis(x, x.argmax(axis=1, keepdims=True), axis=1)
    scale = (high - low) / np.float32(15)
    codes = _four_bit_codes((x.astype(np.float64) - low) * _reciprocal(scale) + 0.5)
    return np.concatenate([_quantize_f16(scale), _quantize_f16(low), codes], axis=1)


def _reciprocal(scale: Float32) -> Float32:
    """0 where it would not be finite: such a scale rounds to zero in half precision anyway."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _four_bit_codes(shifted: NDArray[np.float64]) -> Bytes:
    """Truncated to 0..15 and packed, elements 0..15 in the low nibbles: [blocks, 32] -> [blocks, 16]."""
    codes = np.clip(np.trunc(shifted), 0, 15).astype(np.uint8)
    packed: Bytes = codes[:, :16] | codes[:, 16:] << np.uint8(4)
    return packed


# csrc/row_quantizers.cpp has the same of block types, for loading: a test holds each to the other.
QUANTIZERS: Final[Table[Callable[[Float32], Bytes]]] = Table(
    "type to quantize to",
    {
        "f32": lambda x: x.view(np.uint8),
        "f16": _quantize_f16,
        "bf16": _quantize_bf16,
        "q8_0": _quantize_q8_0,
        "q4_0": _quantize_q4_0,
        "q4_1": _quantize_q4_1,
        "i8": _quantize_i8,
        "i4_64": _quantize_q4_0,
        "i4_128": _quantize_q4_0,
    },
    SpecError,
)
