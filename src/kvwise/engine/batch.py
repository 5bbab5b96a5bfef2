"""From a plan and the cache's block tables to the arrays that a step is computed from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvwise.kvcache import KVCache
from kvwise.spec.batch import StepBatch


class Chunk(NamedTuple):
    """Tokens [start, start + len(token_ids)) of one request; the last `num_logits_rows` rows need logits."""

    request_id: str
    start: int
    token_ids: Sequence[int]
    num_logits_rows: int


def build_batch(chunks: Sequence[Chunk], cache: KVCache, block_copies: Sequence[tuple[int, int]] = ()) -> StepBatch:
    """Lay the chunks out one after the other. Their slots must be reserved. Pure."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts: list[int] = [0]
    contexts: list[int] = []
    rows: list[int] = []
    for chunk in chunks:
        stop = chunk.start + len(chunk.token_ids)
        token_ids.extend(chunk.token_ids)
        positions.extend(range(chunk.start, stop))
        slots.extend(cache.slot_mapping(chunk.request_id, chunk.start, stop))
        contexts.append(stop)
        rows.extend(range(len(token_ids) - chunk.num_logits_rows, len(token_ids)))
        starts.append(len(token_ids))
    tables = [cache.block_table(chunk.request_id) for chunk in chunks]
    padded = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return StepBatch(
        token_ids=np.array(token_ids, np.int32),
        positions=np.array(positions, np.int32),
        slot_mapping=np.array(slots, np.int32),
        query_starts=np.array(starts, np.int32),
        context_lens=np.array(contexts, np.int32),
        block_tables=padded,
        logits_rows=np.array(rows, np.int32),
        block_copies=np.array(block_copies, np.int32).reshape(-1, 2),
    )
