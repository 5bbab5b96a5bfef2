"""An array of strings in a GGUF header, decoded when it is first looked into: a vocabulary has 100,000s of them.

    length: u64, little-endian | UTF-8 | length | UTF-8 | ...

Knows no meaning of any string.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, overload

from kvwise.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_U64: Final = struct.Struct("<Q")
_ZEROS: Final = "\0" * 7  # the upper bytes of a short string's length
_AT_ONCE: Final = 2**10  # strings; a long one among them has them decoded one by one


class GgufStrings(Sequence[str]):
    """`count` strings in `raw`, whose lengths were checked to fill it. Equal to a list of the same strings.

    longest: of all lengths. broken: makes the error for what is wrong with the file.
    Raises CheckpointError, from `check` or at the first look, for a string that is not UTF-8.
    """

    def __init__(
        self, raw: bytes, count: int, *, longest: int, what: str, broken: Callable[[str], CheckpointError]
    ) -> None:
        self._raw, self._count, self._what, self._broken = raw, count, what, broken
        # Whether the zero bytes are the seven upper ones of each length, and no others. Lengths are one byte then, and
        # none is 0: an empty string would have one zero byte more.
        self._are_apart = count > 0 and longest < 256 and raw.count(0) == 7 * count
        self._starts: NDArray[np.intp] | None = None  # of each string's bytes in `raw`, once one was looked up
        self._texts: list[str] | None = None  # kept where they can't be looked up

    def check(self) -> None:
        """Raise CheckpointError unless all strings are UTF-8."""
        self._decode(cut=False)

    def tolist(self) -> list[str]:
        """All strings, decoded anew: who needs them for long keeps them."""
        return self._decode(cut=True)

    def _decode(self, *, cut: bool) -> list[str]:
        """All strings; without `cut` perhaps none, but all were decoded."""
        if self._are_apart:
            with suppress(UnicodeDecodeError):
                return self._decode_in_runs(cut=cut)
        return self._decode_one_by_one()

    def _decode_in_runs(self, *, cut: bool) -> list[str]:
        """Many at once: their bytes as one text, cut at the zeros. Raises UnicodeDecodeError.

        Lengths below 128 are ASCII characters, so that the whole is text; each ends the piece before it.
        """
        import numpy as np

        texts: list[str] = []
        starts, lengths = self._find_starts(), np.frombuffer(self._raw, np.uint8)[self._find_starts() - 8]
        for first in range(0, self._count, _AT_ONCE):
            at, nbytes = starts[first : first + _AT_ONCE], lengths[first : first + _AT_ONCE]
            if nbytes.max() >= 128:
                pairs = zip(at.tolist(), nbytes.tolist(), strict=True)
                texts += [self._raw[start : start + length].decode("utf-8") for start, length in pairs]
                continue
            whole = self._raw[int(at[0]) - 8 : int(at[-1]) + int(nbytes[-1])].decode("utf-8")
            if cut:
                pieces = whole.split(_ZEROS)
                texts += [piece[:-1] for piece in pieces[1:-1]]
                texts.append(pieces[-1])
        return texts

    def _find_starts(self) -> NDArray[np.intp]:
        if self._starts is None:
            import numpy as np

            zeros = np.flatnonzero(np.frombuffer(self._raw, np.uint8) == 0)
            self._starts = zeros[6::7] + 1
        return self._starts

    def _decode_one_by_one(self) -> list[str]:
        raw, unpack, at = self._raw, _U64.unpack_from, 0
        out: list[str] = []
        try:
            for _ in range(self._count):
                start = at + 8
                at = start + unpack(raw, at)[0]
                out.append(raw[start:at].decode("utf-8"))
        except UnicodeDecodeError as problem:
            raise self._broken(f"element {len(out)} of {self._what} is not UTF-8 ({problem.reason})") from None
        return out

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if self._are_apart and isinstance(index, int):
            return self._decode_one(index)
        if self._texts is None:
            self._texts = self.tolist()
        return self._texts[index]

    def _decode_one(self, index: int) -> str:
        start = int(self._find_starts()[index])
        try:
            return self._raw[start : start + self._raw[start - 8]].decode("utf-8")
        except UnicodeDecodeError as problem:
            raise self._broken(f"element {index} of {self._what} is not UTF-8 ({problem.reason})") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | GgufStrings) and self.tolist() == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list has none
