"""What each token id stands for: its exact bytes, and whether it is text at all. Knows no merging and no files."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from kvwise.errors import TokenizerError
from kvwise.frozen import dataclass
from kvwise.spec.fields import shown

SPACE_MARK: Final = "\u2581"  # SentencePiece writes a space as this character
MAX_TOKENS: Final = 2**22  # sixteen times the largest vocabulary in use (Gemma's 262,144)


class Spelling(enum.Enum):
    """How the text of an ordinary token stands for bytes."""

    BYTE_LEVEL = "byte-level"  # each character is one byte, through GPT-2's table
    SPACE_MARKED = "space-marked"  # UTF-8, with U+2581 for a space
    PLAIN = "plain"  # UTF-8 as it is


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """texts: by id, "" where an id has no token. exact: bytes of tokens that do not follow `spelling`: control and
    added tokens, byte tokens. special_ids: tokens that are not text and stay out of decoded output.
    """

    texts: Sequence[str]
    spelling: Spelling
    exact: Mapping[int, bytes]
    special_ids: frozenset[int]

    def __len__(self) -> int:
        return len(self.texts)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for. Raises TokenizerError for an id that is not in the vocabulary."""
        if not 0 <= token_id < len(self.texts):
            raise TokenizerError(f"token id {token_id} is not in the vocabulary", expected=f"0 to {len(self) - 1}")
        found = self.exact.get(token_id)
        if found is not None:
            return found
        text = self.texts[token_id]
        if self.spelling is Spelling.SPACE_MARKED:
            return text.replace(SPACE_MARK, " ").encode()
        if self.spelling is Spelling.PLAIN:
            return text.encode()
        table = byte_of_character()
        try:
            return bytes([table[character] for character in text])
        except KeyError:
            return text.encode()  # a token that was added as plain text, as the `tokenizers` decoder treats it


@cache
def byte_of_character() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 bytes are themselves, the other 68 follow from U+0100 on, in order.

    Source: bytes_to_unicode in openai/gpt-2, src/encoder.py.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {chr(byte): byte for byte in sorted(printable)}
    others = [byte for byte in range(256) if byte not in printable]
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


def parse_byte_token(text: str) -> bytes | None:
    """The byte of a SentencePiece byte token, '<0x0A>' -> b'\\n'; None for any other text."""
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return bytes.fromhex(text[3:5])
        except ValueError:
            return None
    return None


def check_texts(texts: Sequence[str], where: str) -> None:
    """Raise TokenizerError unless the tokens are distinct sound text. Empty ones are no tokens and may repeat."""
    if len(texts) > MAX_TOKENS:
        raise TokenizerError(f"{where} has {len(texts)} tokens", expected=f"at most {MAX_TOKENS}")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        broken = next(i for i, text in enumerate(texts) if not is_sound_text(text))
        raise TokenizerError(f"token {broken} of {where} is not text that UTF-8 can hold") from None
    id_of: dict[str, int] = {}
    if len(set(texts)) == len(texts):
        return
    for i, text in enumerate(texts):
        if text and id_of.setdefault(text, i) != i:
            raise TokenizerError(
                f"token {shown(text)} is twice in {where}, as ids {id_of[text]} and {i}",
                expected="distinct tokens",
                action="convert the model again",
            )


def is_sound_text(text: str) -> bool:
    """False for text with lone surrogates, which no UTF-8 can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
