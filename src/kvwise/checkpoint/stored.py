"""What a file says of one tensor. Owns the shape and byte-range facts; reads nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvwise.frozen import dataclass
from kvwise.spec.dtypes import TensorType

if TYPE_CHECKING:
    from kvwise.checkpoint.checked_file import CheckedFile


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor under the name its file gives it; its bytes are [offset, offset + nbytes) of `file`.

    shape: row-major, the last dimension contiguous ([out, in] for a matrix). `type` is None where the stored
    type is none of kvwise's; `type_name` names it then.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType | None
    type_name: str
    file: CheckedFile
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of the model under its canonical name. `nbytes` are the bytes as stored."""

    name: str
    file_name: str
    shape: tuple[int, ...]
    type: TensorType
    nbytes: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_rows(self) -> int:
        """Rows of the raw bytes: a vector is one row."""
        return math.prod(self.shape[:-1])
