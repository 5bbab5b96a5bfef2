"""Checks a StepBatch against what a program was loaded for, before any memory is touched.

The native backend holds the same rules in C++ (csrc/model_run.cpp).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvwise.errors import BackendError
from kvwise.spec.batch import StepBatch
from kvwise.spec.shape import StepLimits


def check_batch(batch: StepBatch, limits: StepLimits, *, vocab: int, num_blocks: int, block_tokens: int) -> None:
    """Raise BackendError naming the first thing that is out of range or inconsistent."""
    tokens, requests = batch.num_tokens, batch.num_requests
    _check_count("tokens", tokens, limits.max_tokens, low=1)
    _check_count("logits rows", batch.num_logits_rows, limits.max_logits_rows)
    _check_count("requests", requests, limits.max_requests, low=1)
    if batch.positions.size != tokens or batch.slot_mapping.size != tokens:
        raise BackendError("a step's token ids, positions and slots differ in number")
    starts = batch.query_starts
    if starts.size != requests + 1 or starts[0] != 0 or starts[-1] != tokens or (np.diff(starts) < 1).any():
        raise BackendError("query_starts does not cut the step's tokens into one non-empty run per request")
    if batch.block_tables.ndim != 2 or batch.block_tables.shape[0] != requests:
        raise BackendError("block_tables does not have one row per request")
    _check_range("token id", batch.token_ids, vocab)
    _check_range("slot", batch.slot_mapping, num_blocks * block_tokens)
    _check_range("context length - 1", batch.context_lens - 1, limits.max_context)
    _check_range("block", batch.block_tables, num_blocks)
    _check_range("copied block", batch.block_copies, num_blocks)
    _check_range("logits row", batch.logits_rows, tokens)
    if (np.ceil(batch.context_lens / block_tokens) > batch.block_tables.shape[1]).any():
        raise BackendError("a block table is shorter than its request's context")
    last = batch.positions[starts[1:] - 1] + 1
    if (last != batch.context_lens).any():
        raise BackendError("a request's last position is not the end of its context")
    within = np.arange(tokens) - np.repeat(starts[:-1], np.diff(starts))
    first = np.repeat(batch.positions[starts[:-1]], np.diff(starts))
    if (batch.positions != first + within).any() or (batch.positions < 0).any():
        raise BackendError("a request's positions are not consecutive")


def _check_count(what: str, n: int, most: int, *, low: int = 0) -> None:
    if not low <= n <= most:
        raise BackendError(f"a step of {n} {what}", expected=f"{low} to {most}")


def _check_range(what: str, values: NDArray[np.int32], end: int) -> None:
    if values.size and (values.min() < 0 or values.max() >= end):
        raise BackendError(f"{what} out of range: {values.min()}..{values.max()}", expected=f"0..{end - 1}")
