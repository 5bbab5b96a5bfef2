"""Reads forward through a GGUF header: integers, strings and runs of strings. Knows no order of fields.

Bytes are fetched with pread as they are needed, so a length is only believed once the file has proved that long.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from kvwise.checkpoint.checked_file import CheckedFile
from kvwise.errors import CheckpointError

_MAX_HEADER_BYTES: Final = 2**26  # a vocabulary of 202,048 tokens with its merges takes 12 MiB
_FIRST_FETCH_BYTES: Final = 2**16
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class HeaderCursor:
    """`position` is the next unread byte; `cost_left` what arrays may still cost, in scalars."""

    def __init__(self, file: CheckedFile, max_array_cost: int) -> None:
        self.file = file
        self.position = 0
        self.cost_left = max_array_cost
        self._end = min(file.size_bytes, _MAX_HEADER_BYTES)
        self._buffer = bytearray()

    def broken(self, problem: str, expected: str = "") -> CheckpointError:
        return CheckpointError(f"{self.file.path} is not a sound GGUF file: {problem}", expected=expected)

    @property
    def bytes_left(self) -> int:
        return self._end - self.position

    def fetch(self, nbytes: int) -> bytearray:
        """The buffer, with at least `nbytes` beyond `position` in it; it may hold more."""
        end = self.position + nbytes
        if end > self._end:
            where = "its end" if self._end == self.file.size_bytes else f"{_MAX_HEADER_BYTES} bytes of header"
            raise self.broken(f"byte {self.position} starts {nbytes} bytes that run past {where}")
        if end > len(self._buffer):
            # Doubling keeps the copies linear in the header's size.
            upto = min(max(end, 2 * len(self._buffer), _FIRST_FETCH_BYTES), self._end)
            self._buffer += self.file.pread(len(self._buffer), upto - len(self._buffer))
        return self._buffer

    def u32(self) -> int:
        return int(self.unpack(_U32)[0])

    def u64(self) -> int:
        return int(self.unpack(_U64)[0])

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self.fetch(layout.size), self.position)
        self.position += layout.size
        return values

    def string(self, what: str, max_bytes: int = _MAX_HEADER_BYTES) -> str:
        length = self.u64()
        if length > min(max_bytes, self.bytes_left):
            raise self.broken(f"{what} claims {length} bytes", expected=f"at most {min(max_bytes, self.bytes_left)}")
        raw = self.fetch(length)[self.position : self.position + length]
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as problem:
            raise self.broken(f"{what} at byte {self.position} is not UTF-8 ({problem.reason})") from None
        self.position += length
        return text

    def strings(self, count: int, what: str) -> list[str]:
        """`count` strings in a row: the vocabulary's tight loop."""
        out: list[str] = []
        unpack, append = _U64.unpack_from, out.append
        position = self.position
        try:
            while len(out) < count:
                self.position = position
                # Decode all that this much holds, then fetch again.
                buffer = self.fetch(8)
                last = len(buffer)
                while len(out) < count and position + 8 <= last:
                    start = position + 8
                    end = start + unpack(buffer, position)[0]
                    if end > last:
                        self.position = position
                        self._check_string_end(what, end)
                        buffer = self.fetch(end - position)
                        last = len(buffer)
                    append(buffer[start:end].decode("utf-8"))
                    position = end
        except UnicodeDecodeError as problem:
            raise self.broken(f"element {len(out)} of {what} is not UTF-8 ({problem.reason})") from None
        self.position = position
        return out

    def _check_string_end(self, what: str, end: int) -> None:
        if end > self._end:
            raise self.broken(f"a string of {what} runs {end - self._end} bytes past the end")

    def check_count(self, what: str, count: int, limit: int, *, least_bytes: int) -> None:
        """Raise CheckpointError if `count` things of at least `least_bytes` each can't be there."""
        most = min(limit, self.bytes_left // least_bytes)
        if count > most:
            raise self.broken(f"it claims {count} {what}", expected=f"at most {most}")
