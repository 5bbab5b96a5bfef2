"""Where weights come from, as a contract. The checkpoint readers implement it; backends only consume it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kvwise.spec.dtypes import TensorType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Stored(Protocol):
    """One tensor as stored. `shape` is (out, in) or (n,); a row is a whole number of the type's blocks."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def type(self) -> TensorType: ...
    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Where a tensor's rows lie, one after the other: byte `offset` of an open file.

    interleaved_heads: not 0 where the rows are those of so many heads, each with its rotary pairs side by side; they
    are wanted in halves, the first of each pair and then the second.
    """

    descriptor: int
    offset: int
    interleaved_heads: int = 0


class WeightSource(Protocol):
    """Tensors by canonical name."""

    @property
    def tensors(self) -> Mapping[str, Stored]: ...

    def read(self, name: str) -> NDArray[np.uint8]:
        """A copy of the raw bytes [rows, row_bytes] (a vector is one row), in the order that is wanted."""
        ...

    def locate(self, name: str) -> StoredRows:
        """Where the raw bytes can be read, for a backend that copies them piece by piece."""
        ...
