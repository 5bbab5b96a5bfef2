"""Bytes of weights, KV and tables as the native backend holds them, as formulas: known before anything is read.

The layouts are drawn in csrc/layout.h; a test holds both to the same sizes. Knows no contents.
"""

from __future__ import annotations

from typing import Final

from kvwise.program.ir import Program, Role, Weight
from kvwise.spec.dtypes import TensorType
from kvwise.units import align_up, ceil_div

LANES: Final = 16  # output rows that are interleaved
LINE: Final = 64  # every weight and every tile starts on a cache line
OWN_TYPES: Final = frozenset({"i8", "i4_64", "i4_128"})  # their activations share a scale over OWN_GROUP elements
OWN_GROUP: Final = 128
# Bytes of 16 rows of one stored block: f16 scales and minima, then everything else. A half line of scales shares one
# with the next block's.
_BLOCKS: Final = {
    "q8_0": (32, 512),
    "q4_0": (32, 256),
    "q4_1": (64, 256),
    "q5_0": (32, 320),
    "q5_1": (64, 320),
    "q2_k": (64, 256 + 1024),
    "q3_k": (32, 256 + 1536),
    "q4_k": (64, 256 + 2048),
    "q5_k": (64, 256 + 2560),
    "q6_k": (32, 256 + 3072),
    "i8": (0, 512),
    "i4_64": (32, 512),
    "i4_128": (32, 1024),
}
Q8_WEIGHTS: Final = frozenset(_BLOCKS)  # with integer kernels


def tile_bytes(kind: TensorType, inputs: int) -> int:
    """16 output rows over `inputs`."""
    if kind.is_float:
        return align_up(LANES * kind.row_bytes(inputs), LINE)
    scales, rest = _BLOCKS[kind.name]
    blocks = inputs // kind.block_elements
    return align_up(LANES * kind.row_header_bytes + scales * blocks, LINE) + rest * blocks


def weight_bytes(weight: Weight, kind: TensorType) -> int:
    """Matrices as tiles, the last one padded; vectors as float32."""
    if weight.role is Role.VECTOR:
        return align_up(4 * weight.num_elements, LINE)
    outputs, inputs = weight.shape
    return ceil_div(outputs, LANES) * tile_bytes(kind, inputs)


def tables_bytes(program: Program, max_context: int) -> int:
    """cos and sin, float32, of every position and rotary pair."""
    return sum(align_up(2 * 4 * max_context * (rope.rotary_dim // 2), LINE) for rope in program.ropes)
