"""Token ids to text as they come. Owns the rule that a character is shown whole or not yet."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvwise.tokenizer.tokenizer import Tokenizer

_LONGEST_CHARACTER_BYTES: Final = 4


class StreamDecoder:
    """The pieces that push and flush return, joined, are what decode gives for all of the ids.

    after: ids that the text follows, such as the prompt. Their text is not repeated, except that a character which
    they began is shown once it is complete. With `after`, the pieces complete the text of `after` up to its last
    whole character.
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int] = (), *, skip_special: bool = True) -> None:
        self._vocabulary = tokenizer.vocabulary
        self._hidden = tokenizer.special_ids if skip_special else frozenset[int]()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        tail = self._last_bytes(after)
        self._strip_next = tokenizer.spaces.strips and not tail
        self._decoder.decode(_begun_character(tail))

    def push(self, token_id: int) -> str:
        """The text that this token completes, often "". Raises TokenizerError for an unknown id."""
        raw = b"" if token_id in self._hidden else self._vocabulary.token_bytes(token_id)
        if self._strip_next and raw:
            self._strip_next = False
            raw = raw.removeprefix(b" ")
        return self._decoder.decode(raw)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was begun and not completed."""
        return self._decoder.decode(b"", final=True)

    def _last_bytes(self, ids: Sequence[int]) -> bytes:
        """The last bytes of a text, at least as many as a character has, if there are."""
        tail = b""
        for token_id in reversed(ids):
            if token_id not in self._hidden:
                tail = self._vocabulary.token_bytes(token_id) + tail
            if len(tail) >= _LONGEST_CHARACTER_BYTES:
                break
        return tail


def _begun_character(raw: bytes) -> bytes:
    """The end of `raw` that is the beginning of a character, b"" if it ends with a whole one or with none."""
    for length in range(1, min(_LONGEST_CHARACTER_BYTES, len(raw) + 1)):
        end = raw[-length:]
        if end[0] >= 0xC0:  # the byte that leads a character of several
            return end if _is_incomplete(end) else b""
    return b""


def _is_incomplete(end: bytes) -> bool:
    try:
        end.decode()
    except UnicodeDecodeError as problem:
        return problem.reason == "unexpected end of data"
    return False
