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
Q8_WEIGHTS: Final = frozenset({"q8_0", "q4_0", "q4_1"}) | OWN_TYPES  # with integer kernels
_PAIRED: Final = frozenset({"q8_0", "q4_0", "i4_64", "i4_128"})  # scales of two blocks share a line


def tile_bytes(kind: TensorType, inputs: int) -> int:
    """16 output rows over `inputs`: their stored bytes, and at most a cache line."""
    blocks = inputs // kind.block_elements
    unused = 2 * LANES if kind.name in _PAIRED and blocks % 2 else 0
    return align_up(LANES * kind.row_bytes(inputs) + unused, LINE)


def weight_bytes(weight: Weight, kind: TensorType) -> int:
    """Matrices as tiles, the last one padded; vectors as float32."""
    if weight.role is Role.VECTOR:
        return align_up(4 * weight.num_elements, LINE)
    outputs, inputs = weight.shape
    return ceil_div(outputs, LANES) * tile_bytes(kind, inputs)


def tables_bytes(program: Program, max_context: int) -> int:
    """cos and sin, float32, of every position and rotary pair."""
    return sum(align_up(2 * 4 * max_context * (rope.rotary_dim // 2), LINE) for rope in program.ropes)
