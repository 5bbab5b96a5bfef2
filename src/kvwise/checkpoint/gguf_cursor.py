"""Reads forward through a GGUF header: integers, strings and runs of strings. Knows no order of fields.

Bytes are fetched with pread as they are needed, so a length is only believed once the file has proved that long.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from kvwise.checkpoint.checked_file import CheckedFile
from kvwise.checkpoint.gguf_strings import GgufStrings
from kvwise.errors import CheckpointError

_MAX_HEADER_BYTES: Final = 2**26  # a vocabulary of 202,048 tokens with its merges takes 12 MiB
_FETCH_BYTES: Final = 2**18
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
            upto = min(max(end, len(self._buffer) + _FETCH_BYTES), self._end)
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

    def take(self, nbytes: int) -> bytes:
        start = self.position
        raw = bytes(memoryview(self.fetch(nbytes))[start : start + nbytes])
        self.position += nbytes
        return raw

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

    def strings(self, count: int, what: str) -> GgufStrings:
        """`count` strings in a row. Only their lengths are looked at: the vocabulary's tight loop."""
        start = position = self.position
        left, longest, unpack = count, 0, _U64.unpack_from
        while left:
            self.position = position
            # Walk through all that this much holds, then fetch again.
            buffer = self.fetch(8)
            last = len(buffer) - 8
            walked = 0
            for walked in range(1, left + 1):  # noqa: B007
                length = unpack(buffer, position)[0]
                if length > longest:
                    longest = length
                position += 8 + length
                if position > last:
                    break
            left -= walked
            if position > self._end:
                raise self.broken(f"a string of {what} runs {position - self._end} bytes past the end")
        self.position = position
        raw = bytes(memoryview(self.fetch(0))[start:position])
        return GgufStrings(raw, count, longest=longest, what=what, broken=self.broken)

    def check_count(self, what: str, count: int, limit: int, *, least_bytes: int) -> None:
        """Raise CheckpointError if `count` things of at least `least_bytes` each can't be there."""
        most = min(limit, self.bytes_left // least_bytes)
        if count > most:
            raise self.broken(f"it claims {count} {what}", expected=f"at most {most}")
