"""Where weights come from, as a contract. The checkpoint readers implement it; backends only consume it."""

from __future__ import annotations

from collections.abc import Mapping
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


class WeightSource(Protocol):
    """Tensors by canonical name."""

    @property
    def tensors(self) -> Mapping[str, Stored]: ...

    def read(self, name: str) -> NDArray[np.uint8]:
        """Raw bytes [rows, row_bytes] (a vector is one row). Valid until `release(name)` or close."""
        ...

    def release(self, name: str) -> None:
        """Say that `name` was consumed, so that its pages can go back to the system. Idempotent."""
        ...
