"""Where weights come from, as a contract. The checkpoint readers implement it; backends only consume it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from kvwise.frozen import dataclass
from kvwise.spec.dtypes import TensorType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Stored(Protocol):
    """One tensor. `shape` is (out, in) or (n,); a row is a whole number of the type's blocks."""

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
    """Where a tensor's rows lie, one after the other: from byte `offset` of an open file on.

    type: as they are stored; a source may say that a tensor is to be held in another.
    interleaved_heads: not 0 where the rows are those of so many heads, each with its rotary pairs side by side; they
    are wanted in halves, the first of each pair and then the second.
    """

    type: TensorType
    descriptor: int
    offset: int
    interleaved_heads: int = 0


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """What tells the files of one source from those of another.

    place: where they lie; stays when their contents change. contents: changes when those do.
    """

    place: str
    contents: str


class WeightSource(Protocol):
    """Tensors by canonical name, in the types that they are to be held in."""

    @property
    def tensors(self) -> Mapping[str, Stored]: ...

    def read(self, name: str) -> NDArray[np.uint8]:
        """A copy of the raw bytes [rows, row_bytes] (a vector is one row), in the order that is wanted."""
        ...

    def locate(self, name: str) -> StoredRows:
        """Where the bytes as stored can be read, for a backend that copies and converts them piece by piece."""
        ...

    def identity(self) -> SourceIdentity | None:
        """None where nothing can be kept for another start."""
        ...
