"""Tensors that were made in memory, as a file: backends copy weights from files only. Knows no tensor names."""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import TYPE_CHECKING

from kvwise.spec.dtypes import TensorType
from kvwise.spec.weights import StoredRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class UnnamedFile:
    """An open file without a name, in memory where the system can. It goes with the object."""

    def __init__(self) -> None:
        self._descriptor = _memory_file() if hasattr(os, "memfd_create") else _unlinked_file()
        weakref.finalize(self, os.close, self._descriptor)
        self._end = 0

    def append(self, kind: TensorType, raw: NDArray[np.uint8]) -> StoredRows:
        """Where the rows `raw` of type `kind` lie now."""
        start, unwritten = self._end, memoryview(raw.tobytes())
        while unwritten:
            written = os.pwrite(self._descriptor, unwritten, self._end)
            unwritten, self._end = unwritten[written:], self._end + written
        return StoredRows(kind, self._descriptor, start)


def _memory_file() -> int:
    return os.memfd_create("kvwise-tensors", os.MFD_CLOEXEC)


def _unlinked_file() -> int:
    descriptor, path = tempfile.mkstemp(prefix="kvwise-tensors-")
    os.unlink(path)
    return descriptor
