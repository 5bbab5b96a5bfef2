"""How probable a text is to a model: log probabilities of its own tokens, from the logits of its positions.

Knows rows of logits and ids; neither engine nor tokenizer.
"""

from __future__ import annotations

import math
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from kvwise.engine.state import TakePromptLogits
from kvwise.frozen import dataclass


@dataclass(frozen=True, slots=True)
class TextScore:
    """Of one text of n tokens: what the model thought of each token but the first, given those before it.

    logprobs [n - 1]: natural logarithms. best_ids [n - 1]: the likeliest token at each place, the smallest id of ties.
    """

    token_ids: tuple[int, ...]
    logprobs: NDArray[np.float64] = field(repr=False)
    best_ids: NDArray[np.int32] = field(repr=False)

    @property
    def nll(self) -> float:
        """Nats per token: the mean of -logprobs."""
        return float(-self.logprobs.mean())

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll)


class TextScorer:
    """Takes the logits of a text's positions slice by slice, and keeps two numbers of each.

    `also` is handed every slice too.
    """

    def __init__(self, token_ids: tuple[int, ...], also: TakePromptLogits | None = None) -> None:
        self._also = also
        self._token_ids = token_ids
        self._next_ids = np.array(token_ids[1:], np.intp)
        self._logprobs = np.empty(len(self._next_ids), np.float64)
        self._best_ids = np.empty(len(self._next_ids), np.int32)

    def take(self, first_position: int, rows: NDArray[np.float32]) -> None:
        """`rows` [r, vocab] of positions first_position, ... The last position predicts no token of the text."""
        if self._also is not None:
            self._also(first_position, rows)
        place = slice(first_position, min(first_position + len(rows), len(self._next_ids)))
        rows = rows[: place.stop - place.start]
        best_ids = rows.argmax(axis=1)
        best = np.take_along_axis(rows, best_ids[:, None], axis=1)
        chosen = np.take_along_axis(rows, self._next_ids[place, None], axis=1)
        below_best = (chosen - best)[:, 0].astype(np.float64)
        self._logprobs[place] = below_best - np.log(np.exp(rows - best).sum(axis=1, dtype=np.float64))
        self._best_ids[place] = best_ids

    def score(self) -> TextScore:
        """Once every position has been taken."""
        return TextScore(self._token_ids, self._logprobs, self._best_ids)
