"""One read-only file: its checked size, its mapping, and reads that survive a file that shrinks.

Headers and copies go through pread, which can't fault; only `view` hands out the mapping itself.
Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kvwise.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class MappedFile:
    """A regular file, opened and mapped. Byte offsets count from the start of the file.

    Raises CheckpointError if the path is missing, unreadable, empty, or not a regular file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # O_NONBLOCK: opening a FIFO would otherwise wait for a writer that never comes.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as problem:
            raise CheckpointError(f"{path} can't be opened: {problem}") from None
        try:
            self.size_bytes, self._mapping = self._map()
        except BaseException:
            os.close(self._fd)
            raise

    def _map(self) -> tuple[int, mmap.mmap]:
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{self.path} is not a regular file")
        if status.st_size == 0:
            raise CheckpointError(f"{self.path} is empty", action="download it again")
        try:
            return status.st_size, mmap.mmap(self._fd, status.st_size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as problem:
            raise CheckpointError(f"{self.path} can't be mapped: {problem}") from None

    @property
    def name(self) -> str:
        return self.path.name

    def pread(self, offset: int, nbytes: int) -> bytearray:
        """A copy of bytes [offset, offset + nbytes). Raises CheckpointError if the file no longer has them."""
        self._check_range(offset, nbytes)
        out = bytearray(nbytes)
        unfilled, position = memoryview(out), offset
        while unfilled:
            try:
                got = os.preadv(self._fd, [unfilled], position)
            except OSError as problem:
                raise CheckpointError(f"{self.path} can't be read: {problem}") from None
            if got == 0:
                raise self._shrunk()
            unfilled, position = unfilled[got:], position + got
        return out

    def view(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """The mapped bytes [offset, offset + nbytes), read-only and zero-copy.

        Raises CheckpointError if the file is smaller now than when it was opened: touching pages past its end
        would kill the process. A file that shrinks later still can; `pread` is immune.
        """
        import numpy as np

        self._check_range(offset, nbytes)
        if os.fstat(self._fd).st_size < offset + nbytes:
            raise self._shrunk()
        return np.frombuffer(self._mapping, dtype=np.uint8, count=nbytes, offset=offset)

    def release(self, offset: int, nbytes: int) -> None:
        """Give back the resident pages that lie wholly inside [offset, offset + nbytes). Views stay valid."""
        page = mmap.PAGESIZE
        first, last = -(-offset // page) * page, (offset + nbytes) // page * page
        if last > first:
            self._mapping.madvise(mmap.MADV_DONTNEED, first, last - first)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. The mapping goes too, or with the last view of it. Closing twice is fine."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        with suppress(BufferError):  # a view is alive and keeps its own reference
            self._mapping.close()

    def _check_range(self, offset: int, nbytes: int) -> None:
        if self._fd < 0:
            raise CheckpointError(f"{self.path} is closed")
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size_bytes:
            raise CheckpointError(
                f"{self.path} has no bytes {offset} to {offset + nbytes}",
                expected=f"a range within its {self.size_bytes} bytes",
            )

    def _shrunk(self) -> CheckpointError:
        return CheckpointError(
            f"{self.path} shrank while it was in use",
            expected=f"{self.size_bytes} bytes",
            action="let nothing rewrite a model file that is loaded",
        )
