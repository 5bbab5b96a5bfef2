"""How numbers are stored: one row per tensor type, with its exact bytes. Knows no arithmetic.

A block type stores `block_elements` consecutive elements of a row in `block_bytes`. Sizes and ids of the
GGUF types: ggml's type table (github.com/ggml-org/ggml, docs/gguf.md).
"""

from __future__ import annotations

from typing import Final

from kvwise.errors import SpecError
from kvwise.frozen import dataclass
from kvwise.registry import Table


@dataclass(frozen=True, slots=True)
class TensorType:
    """`ggml_id` is the type's number in a GGUF file, None where GGUF has no such type.

    row_header_bytes: what a row begins with, before its blocks.
    """

    name: str
    block_elements: int
    block_bytes: int
    ggml_id: int | None
    row_header_bytes: int = 0

    @property
    def is_float(self) -> bool:
        return self.block_elements == 1

    @property
    def bits_per_element(self) -> float:
        return 8 * self.block_bytes / self.block_elements

    def row_bytes(self, row_elements: int) -> int:
        """Bytes of one row. Raises SpecError if a row is not a whole number of blocks."""
        if row_elements % self.block_elements:
            raise SpecError(
                f"a row of {row_elements} elements can't be stored as {self.name}",
                expected=f"a multiple of {self.block_elements}",
            )
        return self.row_header_bytes + row_elements // self.block_elements * self.block_bytes


_ROWS: Final = (
    TensorType("f32", 1, 4, 0),
    TensorType("f16", 1, 2, 1),
    TensorType("bf16", 1, 2, 30),
    TensorType("q4_0", 32, 18, 2),
    TensorType("q4_1", 32, 20, 3),
    TensorType("q5_0", 32, 22, 6),
    TensorType("q5_1", 32, 24, 7),
    TensorType("q8_0", 32, 34, 8),
    TensorType("q2_k", 256, 84, 10),
    TensorType("q3_k", 256, 110, 11),
    TensorType("q4_k", 256, 144, 12),
    TensorType("q5_k", 256, 176, 13),
    TensorType("q6_k", 256, 210, 14),
    # Our own, made from float weights when a model is loaded: integers with one float32 scale per row, or with one f16
    # scale per 64 or 128 elements.
    TensorType("i8", 32, 32, None, row_header_bytes=4),
    TensorType("i4_64", 64, 34, None),
    TensorType("i4_128", 128, 66, None),
)

TENSOR_TYPES: Final[Table[TensorType]] = Table("tensor type", {t.name: t for t in _ROWS}, SpecError)
TENSOR_TYPE_BY_GGML_ID: Final = {t.ggml_id: t for t in _ROWS if t.ggml_id is not None}
