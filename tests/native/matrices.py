"""Random matrices of every stored type, activations as the kernels take them, and what a product must be."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvwise.backends.native import _native
from kvwise.checkpoint.quants import dequantize, quantize, unpack
from kvwise.program.ir import Q8_BLOCK
from kvwise.spec.dtypes import TENSOR_TYPES, TensorType

ISAS: list[str] = _native.isas()
OWN_TYPES = ("i8", "i4_64", "i4_128")
K_QUANTS = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
Q8_TYPES = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", *K_QUANTS, *OWN_TYPES)
FLOAT_TYPES = ("f32", "f16", "bf16")
UNPACKED_TYPES = tuple(f"{kind}+f32" for kind in Q8_TYPES)  # the same weights on float32 activations
TWICE_TYPES = tuple(f"{kind}+q8x2" for kind in Q8_TYPES)  # the same on activations that are quantized twice
ALL_TYPES = (*FLOAT_TYPES, *Q8_TYPES, *UNPACKED_TYPES, *TWICE_TYPES)

# Where each block type keeps its float16 scales and minima.
_F16_AT = {
    "q8_0": (0,), "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q2_k": (80, 82), "q3_k": (108,),
    "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "i4_64": (0,), "i4_128": (0,),
}  # fmt: skip


def stored_type(kind: str) -> TensorType:
    return TENSOR_TYPES[kind.partition("+")[0]]


def q8_group(kind: str) -> int:
    """Elements of an activation that share a scale."""
    return 128 if stored_type(kind).name in OWN_TYPES else Q8_BLOCK


def random_matrix(kind: str, outputs: int, inputs: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """[outputs, row_bytes]: any codes at all, with scales of ordinary size."""
    tensor_type = stored_type(kind)
    if tensor_type.is_float:
        return quantize(rng.standard_normal((outputs, inputs)), tensor_type)
    raw = rng.integers(0, 256, (outputs, tensor_type.row_bytes(inputs)), np.uint8)
    set_scales(kind, raw, lambda n: (rng.standard_normal(n) * 0.01).astype(np.float16))
    return raw


def set_scales(kind: str, raw: NDArray[np.uint8], values: Any) -> None:
    """Overwrite every float16 of every block of `raw`, or the scale of every row, with values(how many)."""
    if header := stored_type(kind).row_header_bytes:
        raw[:, :header] = values(len(raw)).astype(np.float32).view(np.uint8).reshape(-1, header)
        return
    blocks = raw.reshape(-1, stored_type(kind).block_bytes)
    for at in _F16_AT[stored_type(kind).name]:
        blocks[:, at : at + 2] = values(len(blocks)).astype(np.float16).view(np.uint8).reshape(-1, 2)


def q8_rows(codes: NDArray[np.int8], scales: NDArray[np.float32], group: int = Q8_BLOCK) -> NDArray[np.uint8]:
    """Rows of quantized activations from codes [R, n] and scales [R, n / 32], in the layout of csrc/kernel_table.h."""
    rows, width = codes.shape
    sums: NDArray[Any] = codes.reshape(rows, -1, Q8_BLOCK // 2).sum(axis=2, dtype=np.int16)
    if group != Q8_BLOCK:
        padded = np.zeros((rows, -(-width // 128) * 128), np.int32)
        padded[:, :width] = codes
        halves = padded.reshape(rows, -1, 2, 64).sum(axis=3, dtype=np.int32)
        whole = halves.sum(axis=2, dtype=np.int32)
        fields = np.stack([whole, halves[:, :, 0], halves[:, :, 1], np.zeros_like(whole)], axis=2)
        sums = fields.reshape(rows, -1)[:, : width // Q8_BLOCK]
    parts = (codes, scales.astype(np.float32), sums)
    return np.concatenate([np.ascontiguousarray(p).view(np.uint8).reshape(rows, -1) for p in parts], axis=1)


def random_x(kind: str, rows: int, inputs: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Activations as bytes [rows, row_bytes], and the numbers they stand for in float64."""
    if kind.endswith("+q8x2"):
        halves = [random_x(stored_type(kind).name, rows, inputs, rng) for _ in range(2)]
        return np.concatenate([raw for raw, _ in halves], axis=1), halves[0][1] + halves[1][1]
    if kind not in Q8_TYPES:
        x = rng.standard_normal((rows, inputs)).astype(np.float32)
        return x.view(np.uint8).reshape(rows, 4 * inputs), x.astype(np.float64)
    codes = rng.integers(-127, 128, (rows, inputs)).astype(np.int8)
    scales = rng.random((rows, -(-inputs // q8_group(kind))), np.float32) * 0.1
    scales = np.repeat(scales, q8_group(kind) // Q8_BLOCK, axis=1)[:, : inputs // Q8_BLOCK]
    return q8_rows(codes, scales, q8_group(kind)), codes * np.repeat(scales.astype(np.float64), Q8_BLOCK, axis=1)


def product(
    kind: str,
    raw: NDArray[np.uint8],
    inputs: int,
    x: NDArray[np.uint8],
    isa: str,
    *,
    bias: NDArray[np.float32] | None = None,
    threads: int = 1,
    tiles: int = 4,
    rows: int = 192,
) -> NDArray[np.float32]:
    """x · weightᵀ by the kernels of `isa`."""
    packed = _native.kernels.PackedMatrix(stored_type(kind).name, len(raw), inputs, raw, threads)
    out = np.full((len(x), len(raw)), np.nan, np.float32)
    packed.matmul(isa, x, bias, out, tiles, rows)
    return out


def truth(kind: str, raw: NDArray[np.uint8], x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The product in float64, and how far float32 arithmetic may be from it: one rounding per term and two per scale,
    each relative to the sum of magnitudes. Codes and minima are summed apart, and may cancel."""
    tensor_type = stored_type(kind)
    weight = dequantize(raw, tensor_type, np.float64)
    magnitude = np.abs(weight)
    if not tensor_type.is_float:
        parts = unpack(raw, tensor_type)
        offsets = np.zeros_like(parts.scales) if parts.offsets is None else parts.offsets
        scales, minima = (np.abs(np.repeat(p, parts.group_elements, axis=1)) for p in (parts.scales, offsets))
        magnitude = np.abs(parts.codes) * scales.astype(np.float64) + minima
    return x @ weight.T, (x.shape[1] + 4) * np.finfo(np.float32).eps * (np.abs(x) @ magnitude.T)
