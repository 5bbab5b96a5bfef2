"""What one step computes: token ids, positions, slots and block tables of all its requests. Frozen.

tokens    | request 0: T_0 tokens | request 1: T_1 tokens | ...      T = ΣT_i
query_starts  0                   T_0                     T_0+T_1    B + 1 entries
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvwise.frozen import dataclass
from kvwise.spec.shape import StepShape

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """T tokens of B requests, R of whose rows need logits. All arrays int32, C-contiguous.

    token_ids[T], positions[T]; slot_mapping[T]: block · block_tokens + offset where each token's K and V go;
    query_starts[B+1]; context_lens[B]: tokens in the cache after this step, its own included;
    block_tables[B, max_blocks], padded with 0; logits_rows[R]: indices into T, ascending;
    block_copies[C, 2]: (source, destination) blocks, copied in order before anything is computed.
    """

    token_ids: Ints
    positions: Ints
    slot_mapping: Ints
    query_starts: Ints
    context_lens: Ints
    block_tables: Ints
    logits_rows: Ints
    block_copies: Ints

    @property
    def num_tokens(self) -> int:
        return int(self.token_ids.size)

    @property
    def num_requests(self) -> int:
        return int(self.context_lens.size)

    @property
    def num_logits_rows(self) -> int:
        return int(self.logits_rows.size)

    @property
    def shape(self) -> StepShape:
        return StepShape(
            tuple(int(n) for n in np.diff(self.query_starts)),
            tuple(int(n) for n in self.context_lens),
            self.num_logits_rows,
        )
