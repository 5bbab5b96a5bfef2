"""Sizes of a model that is only described: weights in any number format, and a backend that allocates nothing.

Owns the names of the formats that `plan` speaks of. Reads no file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from kvwise.backends.protocol import LoadedProgram, LoadOptions, MemoryNeeds
from kvwise.errors import BackendError, SpecError, UsageError
from kvwise.program.arena import plan_arena
from kvwise.program.ir import Program, Role
from kvwise.spec.dtypes import TENSOR_TYPES, TensorType
from kvwise.spec.fields import shown
from kvwise.spec.kv import KV_TYPES, KVCacheSpec
from kvwise.spec.weights import WeightSource
from kvwise.units import ceil_div

# Formats without scales: bits times parameters, as tables of model sizes have them.
PLAIN_BITS: Final[Mapping[str, int]] = {"fp32": 32, "bf16": 16, "fp16": 16, "int8": 8, "int4": 4}
_PLAIN_TYPES: Final[Mapping[str, TensorType]] = {
    "fp32": TENSOR_TYPES["f32"],
    "fp16": TENSOR_TYPES["f16"],
    "int8": TensorType("int8", 1, 1, None),
    "int4": TensorType("int4", 2, 1, None),
    "fp8": TensorType("fp8", 1, 1, None),
}
# Formats with scales that are counted and not read here: bytes of a block.
_COUNTED_TYPES: Final[Mapping[str, TensorType]] = {
    t.name: t
    for t in (
        TensorType("int4_g128", 256, 133, None),  # AWQ, GPTQ: of each 128, a 16-bit scale and a 4-bit zero point
        TensorType("int4_g32", 32, 18, None),  # compressed-tensors, symmetric: of each 32, a 16-bit scale
        TensorType("mxfp4", 32, 17, None),  # an 8-bit scale of each 32 (OCP microscaling 1.0)
        TensorType("nvfp4", 16, 9, None),  # an FP8 scale of each 16, and one float32 of each matrix, not counted here
        TensorType("iq4_nl", 32, 18, None),
        TensorType("iq4_xs", 256, 136, None),
    )
}
_VECTOR_TYPE: Final = TENSOR_TYPES["f32"]  # GGUF keeps norms and biases in f32 beside quantized matrices

# What llama.cpp's quantizer falls back to where blocks of 256 do not divide the rows (iq4_nl has the size of q4_0).
_SMALLER_BLOCKS: Final = {"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
_UNDIVIDED_TYPE: Final = TENSOR_TYPES["f16"]


def plain_weight_bytes(parameters: int, name: str) -> int:
    """Bytes of `parameters` numbers of PLAIN_BITS[name] bits each, without scales."""
    return ceil_div(parameters * PLAIN_BITS[name], 8)


def weight_type(name: str) -> TensorType:
    """The format called `name`: a tensor type, a plain width, or one that is only counted. Raises UsageError."""
    if not isinstance(name, str):
        raise UsageError(f"weights is {shown(name)}", expected="the name of a weight type")
    for counted in (_PLAIN_TYPES, _COUNTED_TYPES):
        if name in counted:
            return counted[name]
    if name in TENSOR_TYPES:
        return TENSOR_TYPES[name]
    known = ", ".join(dict.fromkeys((*PLAIN_BITS, "fp8", *TENSOR_TYPES, *_COUNTED_TYPES)))
    raise UsageError(f"unknown weight type {name!r}", expected=f"one of {known}")


def uniform_types(program: Program, weights: TensorType) -> dict[str, TensorType]:
    """Every weight stored as `weights`, as far as its blocks divide the rows; beside block types vectors stay f32."""
    quantized = weights.block_elements > 1 and weights.name not in _PLAIN_TYPES
    return {
        w.name: _VECTOR_TYPE if quantized and w.role is Role.VECTOR else _fitting_type(weights, w.shape[-1])
        for w in program.weights.values()
    }


def _fitting_type(weights: TensorType, row_elements: int) -> TensorType:
    smaller = TENSOR_TYPES[_SMALLER_BLOCKS.get(weights.name, _UNDIVIDED_TYPE.name)]
    return next((t for t in (weights, smaller) if row_elements % t.block_elements == 0), _UNDIVIDED_TYPE)


def published_types(program: Program, plain: TensorType, stored: Mapping[str, str]) -> dict[str, TensorType]:
    """`plain` but for what is published in another format: "experts", and "matrices" of layers but for the router.

    Embedding, head and vectors are always plain.
    """
    types = uniform_types(program, plain)
    for weight in program.weights.values():
        in_layer = weight.name.startswith("layers.") and ".router." not in weight.name
        kind = {Role.EXPERTS: "experts", Role.MATRIX: "matrices"}.get(weight.role)
        if kind is not None and kind in stored and in_layer and weight.name.endswith(".weight"):
            types[weight.name] = _fitting_type(weight_type(stored[kind]), weight.shape[-1])
    return types


def stored_bytes(program: Program, types: Mapping[str, TensorType]) -> dict[str, int]:
    """Bytes of each weight as a file holds it."""
    out = {}
    for weight in program.weights.values():
        *rows, width = weight.shape
        out[weight.name] = math.prod(rows) * types[weight.name].row_bytes(width)
    return out


class StoredSizes:
    """A backend that holds weights as they are stored and runs nothing: what any engine needs at least.

    counted_bytes: all weights' bytes where they were counted in the files; None: by the types they are stored in.
    """

    name = "stored"
    kv_types = tuple(KV_TYPES)

    def __init__(self, counted_bytes: int | None = None) -> None:
        self._counted_bytes = counted_bytes

    def lower(self, program: Program, types: Mapping[str, TensorType]) -> Program:
        return program

    def weight_bytes(self, program: Program, types: Mapping[str, TensorType]) -> dict[str, int]:
        return stored_bytes(program, types)

    def memory_needs(
        self, program: Program, types: Mapping[str, TensorType], kv: KVCacheSpec, options: LoadOptions
    ) -> MemoryNeeds:
        arena = plan_arena(program, options.limits)
        weights = self._counted_bytes
        if weights is None:
            weights = sum(self.weight_bytes(program, types).values())
        pool = options.num_blocks * kv.bytes_per_block
        states = options.limits.max_requests * kv.state_bytes_per_request
        return MemoryNeeds(weights, pool, arena.total_bytes, arena.logits_bytes, 0, states)

    def kept_file(self, program: Program, source: WeightSource, kv: KVCacheSpec, options: LoadOptions) -> None:
        return None

    def load(self, program: Program, source: WeightSource, kv: KVCacheSpec, options: LoadOptions) -> LoadedProgram:
        raise BackendError("this backend only knows sizes", action="load with native or reference")


def runs_on(backend_name: str, types: Mapping[str, TensorType]) -> bool:
    """Whether the weights' formats are ones that engines read at all: not int8 or int4 without scales."""
    return backend_name != StoredSizes.name and all(t.ggml_id is not None for t in types.values())


def check_rows_divide(program: Program, weights: TensorType) -> None:
    """Raise SpecError if no matrix can be stored as `weights`."""
    matrices = [w for w in program.weights.values() if w.role is not Role.VECTOR]
    if all(w.shape[-1] % weights.block_elements for w in matrices):
        raise SpecError(
            f"no matrix of this model can be stored as {weights.name}",
            expected=f"rows of a multiple of {weights.block_elements} elements",
        )
