"""Which tokens of a long text are scored, given which others, and what is kept of the logits that predict them.

Windows of `size` tokens begin every `stride` tokens, each with an empty cache. A window scores its tokens that no
earlier window has scored, so every token but the text's first is scored once:

    size 8, stride 4    |-SSSSSSS|               - given, not scored: the text's first
                            |----SSSS|           the second window scores what lies behind the first
                                |----SSSS|

Needs numpy only: it runs in llama.cpp's environment too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Window:
    """Tokens [start, stop) are computed; of them those from `first_scored` on are scored."""

    start: int
    stop: int
    first_scored: int


def windows_of(num_tokens: int, size: int, stride: int) -> list[Window]:
    """Raises ValueError for a stride that would leave tokens out."""
    if not 0 < stride < size or num_tokens < 2:
        raise ValueError(f"{num_tokens} tokens in windows of {size} every {stride}")
    out = [Window(0, min(size, num_tokens), 1)]
    while out[-1].stop < num_tokens:
        start = out[-1].start + stride
        out.append(Window(start, min(start + size, num_tokens), out[-1].stop))
    return out


def log_softmax(rows: Floats) -> Floats:
    shifted: Floats = rows - rows.max(axis=1, keepdims=True)
    sums = np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True)
    shifted -= np.log(sums).astype(np.float32)
    return shifted


class Tally:
    """Takes logits of windows slice by slice; token i's results stand at i - 1.

    `base` [n - 1, vocab]: log probabilities to compare with, or, with `record`, where to write them.
    """

    def __init__(
        self, ids: Sequence[int], windows: Sequence[Window], base: Floats | None = None, record: bool = False
    ) -> None:
        self._ids, self._windows = np.array(ids, np.intp), windows
        self._base, self._record = base, record
        self.logprobs = np.full(len(ids) - 1, np.nan)
        self.divergences = np.zeros(len(ids) - 1)
        self.agrees = np.ones(len(ids) - 1, np.bool_)

    def take(self, index: int, first_position: int, rows: Floats) -> None:
        """Logits [r, vocab] of positions first_position, ... of window `index`."""
        window = self._windows[index]
        predicted = window.start + first_position + 1  # by the first row
        skipped = max(0, window.first_scored - predicted)
        rows = rows[skipped : window.stop - predicted]
        if not len(rows):
            return
        place = slice(predicted + skipped - 1, predicted + skipped - 1 + len(rows))
        logs = log_softmax(rows)
        self.logprobs[place] = np.take_along_axis(logs, self._ids[place.start + 1 : place.stop + 1, None], axis=1)[:, 0]
        if self._base is None:
            return
        if self._record:
            self._base[place] = logs
            return
        base = self._base[place]
        self.divergences[place] = np.einsum("rv,rv->r", np.exp(base), base - logs, dtype=np.float64)
        self.agrees[place] = base.argmax(axis=1) == logs.argmax(axis=1)

    def summary(self) -> dict[str, Any]:
        """perplexity; kl: mean Kullback-Leibler divergence from the base, in nats; top1: share of equal choices."""
        out: dict[str, Any] = {"perplexity": math.exp(-float(self.logprobs.mean()))}
        if self._base is not None:
            out |= {
                "kl": float(self.divergences.mean()),
                "kl_p99": float(np.quantile(self.divergences, 0.99)),
                "top1": float(self.agrees.mean()),
            }
        return out
