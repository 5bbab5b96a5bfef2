"""The engine's own scheduler and cache on the same lengths, with nothing computed; and what their bookkeeping takes."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from kvwise.engine.batch import Chunk, build_batch
from kvwise.engine.engine import Engine
from kvwise.kvcache import KVCache
from kvwise.spec.kv import KV_TYPES, KVCacheSpec, LayerKV
from kvwise.spec.request import Request, SamplingParams
from kvwise.spec.shape import StepLimits
from kvwise.studies.pages.policies import Lengths, Use, check_waits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvwise.spec.batch import StepBatch

_VOCAB: Final = 2
_SAMPLES: Final = 5


class _Watching:
    """Computes nothing; notes at each step how the pool is used, until nobody waits."""

    def __init__(self, num_requests: int) -> None:
        self.engine: Engine | None = None
        self.notes: list[tuple[int, int, int]] = []  # tokens stored, slots in use, requests
        self.somebody_waits = True
        self._num_requests, self._steps = num_requests, 0

    def execute(self, batch: StepBatch) -> NDArray[np.float32]:
        assert self.engine is not None
        self._steps += 1
        stats, held = self.engine.cache.stats(), len(self.engine.cache.requests)
        self.somebody_waits &= len(self.engine.outputs) + held < self._num_requests
        if self.somebody_waits:
            # Tokens of this step are reserved and not yet counted as used.
            self.notes.append((stats.used_tokens + batch.num_tokens, stats.used_slots, held))
        return np.ones((batch.num_logits_rows, _VOCAB), np.float32)

    def now_s(self) -> float:
        return float(self._steps)


def hold_by_engine(lengths: Lengths, pool_tokens: int, block_tokens: int) -> Use:
    """What policies.hold_in_blocks simulates, by the engine."""
    kv = KVCacheSpec((LayerKV(1, 1, 1, None),), KV_TYPES["f16"], block_tokens)
    limits = StepLimits(pool_tokens, len(lengths), len(lengths), pool_tokens)
    watching = _Watching(len(lengths))
    engine = Engine(watching, kv, pool_tokens // block_tokens, limits, vocab=_VOCAB, prefix_cache=False)
    watching.engine = engine
    for i, (prompt, output) in enumerate(lengths):
        engine.add_request(Request(str(i), (0,) * prompt, SamplingParams(max_tokens=output)))
    preempted = 0
    while watching.somebody_waits:
        preempted += len(engine.step().preempted)
    check_waits(len(watching.notes))
    stored, used, requests = (statistics.fmean(column) for column in zip(*watching.notes, strict=True))
    return Use(
        stored=stored / pool_tokens,
        later=0.0,
        internal=(used - stored) / pool_tokens,
        external=0.0,
        unused=1 - used / pool_tokens,
        requests=requests,
        preempted=preempted / len(lengths),
    )


def bookkeeping_s(context: int, block_tokens: int, steps: int) -> float:
    """Seconds that one request of `context` tokens adds to a decode step: reserve, block table, slots, publish."""
    cache = KVCache(-(-(context + steps) // block_tokens), block_tokens)
    cache.admit("a", cache.empty_prefix())
    cache.commit(cache.reserve("a", [0] * context))
    taken = []
    for at in range(context, context + steps):
        start = time.perf_counter()
        reservation = cache.reserve("a", [at])
        build_batch([Chunk("a", at, reservation.token_ids, 1)], cache)
        cache.commit(reservation)
        taken.append(time.perf_counter() - start)
    size = max(1, steps // _SAMPLES)
    return statistics.median(statistics.fmean(taken[i : i + size]) for i in range(0, steps, size))
