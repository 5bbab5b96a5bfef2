"""A model that can be checked by hand: next token = (sum of all tokens so far) mod vocab, read back from the cache.

The fake keeps one token id per slot where a real executor keeps K and V, so a wrong slot, a lost copy or a block that
was overwritten gives a wrong answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvwise.spec.batch import StepBatch
from kvwise.spec.kv import KV_TYPES, KVCacheSpec, LayerKV

VOCAB = 61
KV = KVCacheSpec((LayerKV(1, 4, 4, None),), KV_TYPES["f32"])


class SumExecutor:
    """`fail_at` raises in that step, before anything is written."""

    def __init__(self, num_blocks: int, *, fail_at: int | None = None) -> None:
        self.slots = np.full(num_blocks * KV.block_tokens, -1, np.int64)
        self.batches: list[StepBatch] = []
        self.fail_at = fail_at

    def execute(self, batch: StepBatch) -> np.ndarray:
        if len(self.batches) == self.fail_at:
            self.fail_at = None
            raise RuntimeError("the device is gone")
        self.batches.append(batch)
        n = KV.block_tokens
        for source, destination in batch.block_copies:
            self.slots[destination * n : destination * n + n] = self.slots[source * n : source * n + n]
        self.slots[batch.slot_mapping] = batch.token_ids
        logits = np.zeros((batch.num_logits_rows, VOCAB), np.float32)
        for r, row in enumerate(batch.logits_rows):
            request = int(np.searchsorted(batch.query_starts, row, side="right")) - 1
            positions = np.arange(batch.positions[row] + 1)
            table = batch.block_tables[request]
            seen = self.slots[table[positions // n] * n + positions % n]
            assert (seen >= 0).all(), "a position was read before it was written"
            logits[r, int(seen.sum()) % VOCAB] = 1.0
        return logits

    def now_s(self) -> float:
        return float(len(self.batches))


def expected_ids(prompt: Sequence[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(sum(ids) % VOCAB)
    return ids[len(prompt) :]
