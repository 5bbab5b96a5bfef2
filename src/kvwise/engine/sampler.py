"""Picks the next token from one row of logits. Owns the order of the filters; knows no request but its parameters.

The random number of output token i is a function of (seed, i) alone, so the same seed gives the same tokens whatever
else runs, and after preemption too.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from kvwise.errors import BackendError
from kvwise.spec.request import SamplingParams


def sample(
    logits: NDArray[np.float32],
    params: SamplingParams,
    seed: int,
    index: int,
    banned_ids: Collection[int] = (),
) -> int:
    """The token for output position `index` from `logits` [vocab].

    Filters in order: banned ids, temperature, top_k, top_p, min_p; then one draw. Ties go to the smaller id.
    Raises BackendError when the logits are not numbers, which a broken weight file causes.
    """
    if banned_ids:
        logits = logits.copy()
        logits[[i for i in banned_ids if i < logits.size]] = -np.inf
    best = int(logits.argmax())
    if not np.isfinite(logits[best]):
        raise BackendError("the logits are not finite", action="the weights hold NaN or infinity: check the file")
    if params.greedy:
        return best
    ids, weights = _candidates(logits, params)
    cumulative = np.cumsum(weights)
    chosen = int(np.searchsorted(cumulative, uniform(seed, index) * cumulative[-1], side="right"))
    return int(ids[min(chosen, ids.size - 1)])


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) with 53 random bits, from BLAKE2b of (seed, index)."""
    digest = hashlib.blake2b(struct.pack("<QQ", seed, index), digest_size=8, person=b"kvwise-sample").digest()
    return float(struct.unpack("<Q", digest)[0] >> 11) * 2.0**-53


def _candidates(logits: NDArray[np.float32], params: SamplingParams) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Ids that survive the filters, most probable first, and their unnormalised probabilities."""
    ids = np.arange(logits.size)
    if 0 < params.top_k < logits.size:
        ids = _top_ids(logits, params.top_k)
    below_best = logits[ids].astype(np.float64)
    below_best -= below_best.max()  # before the division: a temperature near 0 then gives -inf at worst, never NaN
    with np.errstate(over="ignore"):
        weights = np.exp(below_best / params.temperature)
    weights /= weights.sum()
    if params.top_p < 1.0:
        # Tokens this rare sum to less than 1 - top_p together: they lie outside the nucleus, so they need no sorting.
        keep = weights >= (1.0 - params.top_p) / weights.size
        ids, weights = ids[keep], weights[keep]
    order = np.lexsort((ids, -weights))
    ids, weights = ids[order], weights[order]
    if params.top_p < 1.0:
        before = np.cumsum(weights) - weights  # mass of the more probable ones
        ids, weights = ids[before < params.top_p], weights[before < params.top_p]
    if params.min_p > 0.0:
        keep = weights >= params.min_p * weights[0]
        ids, weights = ids[keep], weights[keep]
    return ids, weights


def _top_ids(logits: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """The k largest, without sorting the vocabulary; of equal ones at the edge the smaller ids."""
    cut = np.partition(logits, logits.size - k)[logits.size - k]
    above = np.flatnonzero(logits > cut)
    return np.concatenate([above, np.flatnonzero(logits == cut)[: k - above.size]])
