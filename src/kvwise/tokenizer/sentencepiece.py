"""SentencePiece's merging by score, expressed as ranked merges. Knows scores and texts, no files.

SentencePiece joins, again and again, the neighbours whose union has the highest score in the vocabulary, leftmost
first. A merge list with the unions in order of falling score does the same: every way to cut a token into two tokens
is a merge, ranked by the token's score. The one difference: unions of equal score are taken by rank, not from the
left, which shows only where a token overlaps itself ("aaa" as "a"+"aa" and as "aa"+"a").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from kvwise.errors import TokenizerError
from kvwise.tokenizer.vocabulary import SPACE_MARK

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer

# Cutting every token everywhere costs its length squared: 14 million for Gemma's 262,144 tokens.
_MAX_CUT_WORK: Final = 2 * 10**8


def check_scores(scores: Sequence[float]) -> Sequence[float]:
    """Raise TokenizerError for a score that has no order."""
    if any(map(math.isnan, scores)):
        bad = next(i for i, score in enumerate(scores) if math.isnan(score))
        raise TokenizerError(f"the score of token {bad} is not a number")
    return scores


def score_merges(tokens: Iterable[tuple[str, int, float]]) -> list[tuple[str, str]]:
    """Ranked merges, best first, from (text, id, score) of the tokens that may be joined or result from joining."""
    rows = list(tokens)
    id_of = {text: i for text, i, _ in rows}
    if sum(len(text) ** 2 for text in id_of) > _MAX_CUT_WORK:
        raise TokenizerError(
            "the vocabulary's tokens are absurdly long", expected=f"squared lengths of at most {_MAX_CUT_WORK} in sum"
        )
    ranked: list[tuple[float, int, int, int, str, str]] = []
    for text, token_id, score in rows:
        for cut in range(1, len(text)):
            left = id_of.get(text[:cut])
            if left is not None:
                right = id_of.get(text[cut:])
                if right is not None:
                    ranked.append((-score, token_id, left, right, text[:cut], text[cut:]))
    ranked.sort()
    return [(left_text, right_text) for *_, left_text, right_text in ranked]


def space_normalizer(prepends: bool) -> Normalizer:
    """Spaces become U+2581, after one more is put before each stretch of text, if so asked."""
    from tokenizers.normalizers import Prepend, Replace, Sequence

    replace: Normalizer = Replace(" ", SPACE_MARK)
    return Sequence([Prepend(SPACE_MARK), replace]) if prepends else replace
