"""Text to token ids and back, for every kind of vocabulary. Owns the rules on BOS, leading spaces and special tokens.

Cutting and merging is an Encoder's; turning ids into text is done here, over exact bytes, so that a stream of tokens
and the whole of them give the same text. Knows no files and no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Final, Protocol

from kvwise.errors import TokenizerError
from kvwise.frozen import dataclass
from kvwise.tokenizer.vocabulary import Vocabulary, is_sound_text

# Text that a vocabulary might join to what follows: the one that it does not is put before text that continues other
# text, and its tokens are dropped again.
_ANCHORS: Final = ("\n", ".", "a", "1", ")")
_NO_LITERALS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """bos_id, eos_id: None where the vocabulary has none. stop_ids: each of them ends a generation."""

    bos_id: int | None = None
    eos_id: int | None = None
    add_bos: bool = False
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SpaceRules:
    """prepends: text gets a space before its first word. strips: decoding drops one space at the very start."""

    prepends: bool = False
    strips: bool = False


class Encoder(Protocol):
    """Cuts and merges text that UTF-8 can hold. Safe to use from several threads at once."""

    def prepare(self) -> None:
        """Build what a first text would otherwise wait for. Raises TokenizerError for a vocabulary that is broken."""
        ...

    @property
    def is_prepared(self) -> bool:
        """Whether a text can be encoded at once."""
        ...

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """The ids of `text`. parse_special: the texts of special tokens become those tokens. Raises TokenizerError."""
        ...


class Tokenizer:
    """Made by load_tokenizer. Safe to use from several threads at once.

    vocabulary: what each id stands for. specials, spaces: see their classes.
    """

    def __init__(self, encoder: Encoder, vocabulary: Vocabulary, specials: SpecialTokens, spaces: SpaceRules) -> None:
        self._encoder = encoder
        self.vocabulary, self.specials, self.spaces = vocabulary, specials, spaces

    @property
    def vocab_size(self) -> int:
        """One more than the largest id. A model's embedding may have more rows; those ids stand for nothing."""
        return len(self.vocabulary)

    @property
    def bos_id(self) -> int | None:
        return self.specials.bos_id

    @property
    def eos_id(self) -> int | None:
        return self.specials.eos_id

    @property
    def add_bos(self) -> bool:
        return self.specials.add_bos

    @property
    def stop_ids(self) -> frozenset[int]:
        return self.specials.stop_ids

    @property
    def special_ids(self) -> frozenset[int]:
        return self.vocabulary.special_ids

    def prepare(self) -> None:
        """Build now what the first text to encode would otherwise wait for. Raises TokenizerError."""
        self._encoder.prepare()

    @property
    def is_prepared(self) -> bool:
        return self._encoder.is_prepared

    def count_at_least(self, text: str) -> int:
        """A lower bound on the tokens of `text`, at once: no token spells more than the vocabulary's longest."""
        return len(text) // self._longest_token_chars

    @cached_property
    def _longest_token_chars(self) -> int:
        """A token's text has a character for each byte, or for each character, that it spells."""
        return max(1, *map(len, self.vocabulary.texts))

    @cached_property
    def special_texts(self) -> Mapping[str, int]:
        """What stands for a special token where those are parsed, and its id."""
        texts = {self.token_text(token_id): token_id for token_id in sorted(self.special_ids)}
        texts.pop("", None)
        return texts

    def encode(
        self,
        text: str,
        *,
        add_special: bool,
        parse_special: bool,
        continues: bool = False,
        literals: Mapping[str, str] = _NO_LITERALS,
    ) -> list[int]:
        """The token ids of `text`.

        add_special: begin with BOS if the vocabulary wants one; never twice, also when the text brings its own. EOS
        is never added: a prompt is there to be continued.
        parse_special: the texts of special tokens become those tokens; otherwise they are text like any other.
        continues: the text follows other text, so no space is put before it.
        literals: characters of `text` that stand for other text, in which no special token is parsed.
        Raises TokenizerError for a str that UTF-8 can't hold.
        """
        _check_encodable(text)
        if any(character in text for character in literals):
            ids = self._encode_around(text, parse_special, continues, literals)
        else:
            ids = self._encode_piece(text, parse_special, continues)
        bos = self.bos_id
        if add_special and self.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD. Raises TokenizerError for an unknown id."""
        hidden = self.special_ids if skip_special else frozenset[int]()
        token_bytes = self.vocabulary.token_bytes
        raw = b"".join([token_bytes(token_id) for token_id in ids if token_id not in hidden])
        if self.spaces.strips and raw.startswith(b" "):
            raw = raw[1:]
        return raw.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token. Raises TokenizerError for an unknown id."""
        return self.vocabulary.token_bytes(token_id)

    def token_text(self, token_id: int | None) -> str:
        """A token as a template writes it ("<s>"); "" for None."""
        return "" if token_id is None else self.token_bytes(token_id).decode("utf-8", "replace")

    def _encode_around(self, text: str, parse_special: bool, continues: bool, literals: Mapping[str, str]) -> list[int]:
        """Cut the special tokens out first, then put the literals in and encode what lies between as plain text."""
        specials = self.special_texts if parse_special else {}
        longest_first = sorted(specials, key=len, reverse=True)
        pieces = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text) if specials else [text]
        replaced = str.maketrans(dict(literals))
        ids: list[int] = []
        for i, piece in enumerate(pieces):
            if i % 2:
                ids.append(specials[piece])
            elif piece:
                follows = continues if i == 0 else not self._begins_anew_after_special
                ids += self._encode_piece(piece.translate(replaced), False, follows)
        return ids

    @cached_property
    def _begins_anew_after_special(self) -> bool:
        """Whether text after a special token gets the space that a text begins with."""
        special = next(iter(self.special_texts))
        return self._encode(special + "a", True)[1:] == self._encode("a", True)

    def _encode_piece(self, text: str, parse_special: bool, continues: bool) -> list[int]:
        if continues and self.spaces.prepends and text:
            return self._encode_continued(text, parse_special)
        return self._encode(text, parse_special)

    def _encode(self, text: str, parse_special: bool) -> list[int]:
        return self._encoder.encode(text, parse_special=parse_special)

    def _encode_continued(self, text: str, parse_special: bool) -> list[int]:
        """Encode behind a stop-gap that the vocabulary keeps apart, then drop the stop-gap's tokens."""
        for anchor in _ANCHORS:
            alone = self._encode(anchor, parse_special)
            both = self._encode(anchor + text, parse_special)
            if both[: len(alone)] == alone:
                return both[len(alone) :]
        return self._encode(text, parse_special)


def _check_encodable(text: object) -> None:
    if not isinstance(text, str):
        raise TokenizerError(f"the text to encode is {type(text).__name__}", expected="a str")
    if not is_sound_text(text):
        raise TokenizerError("the text to encode has lone surrogates", expected="text that UTF-8 can hold")
