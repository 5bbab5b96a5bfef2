"""One read-only file: its checked size, and reads that survive a file that shrinks.

Everything is copied by pread and nothing mapped: reading a mapped page that the file no longer has kills the process.
Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, Self

from kvwise.errors import CheckpointError

_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096


class CheckedFile:
    """A regular file, opened. Byte offsets count from the start of the file.

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
            self.size_bytes = self._checked_size()
        except BaseException:
            os.close(self._fd)
            raise

    def _checked_size(self) -> int:
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{self.path} is not a regular file")
        if status.st_size == 0:
            raise CheckpointError(f"{self.path} is empty", action="download it again")
        return status.st_size

    @property
    def descriptor(self) -> int:
        """For others to pread from, until close. Raises CheckpointError if the file is closed."""
        if self._fd < 0:
            raise CheckpointError(f"{self.path} is closed")
        return self._fd

    @property
    def name(self) -> str:
        return self.path.name

    def pread(self, offset: int, nbytes: int) -> bytearray:
        """A copy of bytes [offset, offset + nbytes). Raises CheckpointError if the file no longer has them."""
        descriptor = self.descriptor
        self._check_range(offset, nbytes)
        out = bytearray(nbytes)
        unfilled, position = memoryview(out), offset
        while unfilled:
            try:
                got = os.preadv(descriptor, [unfilled], position)
            except OSError as problem:
                raise CheckpointError(f"{self.path} can't be read: {problem}") from None
            if got == 0:
                raise self._shrunk()
            unfilled, position = unfilled[got:], position + got
        return out

    def fingerprint(self) -> str:
        """Changes when the contents do: of the size, the time of the last change, and samples of the bytes.

        Reading all would take as long as loading does. What changes bytes between the samples and then sets the time
        back is not noticed. Raises CheckpointError if the file shrank.
        """
        from hashlib import blake2b

        digest = blake2b(f"{self.size_bytes} {os.fstat(self.descriptor).st_mtime_ns}".encode(), digest_size=16)
        for number in range(_SAMPLES):
            start = (self.size_bytes - _SAMPLE_BYTES) * number // (_SAMPLES - 1)
            digest.update(self.pread(max(0, start), min(_SAMPLE_BYTES, self.size_bytes)))
        return digest.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _check_range(self, offset: int, nbytes: int) -> None:
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
