"""Encoding by a byte-level vocabulary: short texts are merged here, others by the `tokenizers` library.

The library takes 0.3 s to take in 150,000 tokens and their merges, more than all else that a small model's start
needs; a prompt of a line or two is merged here in a thousandth of that. Both give the same ids, which a test holds.
Words are found by the library's pre-tokenizer either way.

Byte-pair encoding: of all neighbours in a word, those of the earliest merge are joined, the leftmost first, until no
two neighbours are a merge. Source: Sennrich et al., arXiv 1508.07909; the library's models/bpe/word.rs.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Final

from kvwise.errors import TokenizerError
from kvwise.frozen import dataclass
from kvwise.spec.fields import shown
from kvwise.tokenizer.pipeline import LibraryEncoder, add_tokens, build_bpe, parse_merge, translated_failures
from kvwise.tokenizer.pretokenizers import PreTokenizerKind, build_pre_tokenizer

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

# Merging a word takes its length squared; the longest prompts of this size stay within a few milliseconds.
SHORT_TEXT_CHARS: Final = 1024
_SHORT_WORD_CHARS: Final = 64


@dataclass(frozen=True, slots=True)
class AddedTokens:
    """Tokens that are cut out of a text before all else, by their text: `special` ones only where those are parsed."""

    special: Mapping[str, int]
    ordinary: Mapping[str, int]


class ByteLevelEncoder:
    """Implements tokenizer.Encoder. What it needs is built when it is first needed.

    id_of: gives the vocabulary. merges: gives "left right" in order of rank. Raises TokenizerError from prepare and
    encode for what is broken in them.
    """

    def __init__(
        self,
        id_of: Callable[[], dict[str, int]],
        merges: Callable[[], Sequence[str]],
        added: AddedTokens,
        kind: PreTokenizerKind,
    ) -> None:
        self._id_of, self._merges, self._added, self._kind = id_of, merges, added, kind
        self._lock = threading.Lock()
        self._short_texts: _ShortTexts | None = None
        self._library: LibraryEncoder | None = None

    def prepare(self) -> None:
        if self._library is None:
            self._for_short_texts()

    @property
    def is_prepared(self) -> bool:
        return self._short_texts is not None or self._library is not None

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        if self._library is None and len(text) <= SHORT_TEXT_CHARS:
            ids = self._for_short_texts().encode(text, parse_special=parse_special)
            if ids is not None:
                return ids
        return self._for_all_texts().encode(text, parse_special=parse_special)

    def _for_short_texts(self) -> _ShortTexts:
        with self._lock:
            if self._short_texts is None:
                merges = self._merges()
                _check_spaces(merges)
                rank_of = dict(zip(merges, range(len(merges)), strict=True))
                self._short_texts = _ShortTexts(self._id_of(), rank_of, self._added, self._kind)
            return self._short_texts

    def _for_all_texts(self) -> LibraryEncoder:
        from tokenizers import Tokenizer as Pipeline

        with self._lock:
            if self._library is None:
                merges = [parse_merge(merge) for merge in self._merges()]
                pipeline = Pipeline(build_bpe(self._id_of(), merges, ignore_merges=self._kind.ignore_merges))
                pipeline.pre_tokenizer = build_pre_tokenizer(self._kind)
                add_tokens(pipeline, list(self._added.special), special=True)
                add_tokens(pipeline, list(self._added.ordinary), special=False)
                self._library = LibraryEncoder(pipeline)
                self._short_texts = None  # it does all from now on, and both would be twice the memory
            return self._library


def _check_spaces(merges: Sequence[str]) -> None:
    """Raise TokenizerError for a merge that is not two tokens with a space between; tokens here hold no space."""
    lines = "\n" + "\n".join(merges) + "\n"
    if set(map(str.count, merges, repeat(" "))) <= {1} and "\n " not in lines and " \n" not in lines:
        return  # all at once; only where that finds something, one by one
    for merge in merges:
        parse_merge(merge)
        if merge.count(" ") != 1:
            raise TokenizerError(f"merge {shown(merge)} does not name two tokens", expected="'left right'")


class _ShortTexts:
    """rank_of: by "left right". Safe to use from several threads at once."""

    def __init__(
        self, id_of: Mapping[str, int], rank_of: Mapping[str, int], added: AddedTokens, kind: PreTokenizerKind
    ) -> None:
        self._id_of, self._rank_of, self._special = id_of, rank_of, added.special
        self._added = {**added.special, **added.ordinary}
        longest_first = sorted(self._added, key=len, reverse=True)
        self._added_pattern = re.compile("|".join(map(re.escape, longest_first))) if self._added else None
        self._pre_tokenizer: PreTokenizer = build_pre_tokenizer(kind)
        self._ignore_merges = kind.ignore_merges

    def encode(self, text: str, *, parse_special: bool) -> list[int] | None:
        """The ids; None for a text with a word so long that merging it here would take long."""
        ids: list[int] = []
        start = 0
        for found in self._added_pattern.finditer(text) if self._added_pattern else ():
            if found[0] in self._special and not parse_special:
                continue  # text like any other, and part of what is around it
            if not self._encode_words(text[start : found.start()], ids):
                return None
            ids.append(self._added[found[0]])
            start = found.end()
        return ids if self._encode_words(text[start:], ids) else None

    def _encode_words(self, text: str, ids: list[int]) -> bool:
        """Append the ids of `text`; False for a word that is too long."""
        if not text:
            return True
        with translated_failures("the text can't be encoded"):
            words = self._pre_tokenizer.pre_tokenize_str(text)
        for word, _ in words:
            if len(word) > _SHORT_WORD_CHARS:
                return False
            if self._ignore_merges and word in self._id_of:
                ids.append(self._id_of[word])
            else:
                ids += map(self._id_of_piece, self._merge(word))
        return True

    def _merge(self, word: str) -> list[str]:
        # Bytes that the vocabulary lacks are left out, as the library leaves them.
        pieces = [character for character in word if character in self._id_of]
        rank_of, last = self._rank_of, len(self._rank_of)
        while len(pieces) > 1:
            ranks = [rank_of.get(f"{left} {right}", last) for left, right in pairwise(pieces)]
            best = min(ranks)
            if best == last:
                break
            at = ranks.index(best)
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return pieces

    def _id_of_piece(self, piece: str) -> int:
        token_id = self._id_of.get(piece)
        if token_id is None:
            raise TokenizerError(
                f"a merge needs token {shown(piece)}, which the vocabulary lacks", action="convert the model again"
            )
        return token_id
