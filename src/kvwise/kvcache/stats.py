"""Figures about a cache, for the ledger, metrics and people. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from kvwise.frozen import dataclass
from kvwise.kvcache.block_pool import BlockPool
from kvwise.kvcache.request_blocks import RequestBlocks


@dataclass(slots=True)
class CacheCounters:
    """Totals since the cache was made."""

    queried_tokens: int = 0
    hit_tokens: int = 0
    published_blocks: int = 0
    duplicate_blocks: int = 0


@dataclass(frozen=True, slots=True)
class CacheStats:
    """used + idle + free = num_blocks. Idle blocks hold a prefix that nobody uses now.

    `used_slots` − `used_tokens` is internal fragmentation: slots in used blocks that hold no computed token, those of
    an open reservation included. Shared blocks count once.
    """

    num_blocks: int
    used_blocks: int
    idle_blocks: int
    free_blocks: int
    used_slots: int
    used_tokens: int
    queried_tokens: int
    hit_tokens: int
    published_blocks: int
    duplicate_blocks: int
    evicted_blocks: int

    @property
    def fragmentation_slots(self) -> int:
        return self.used_slots - self.used_tokens

    @property
    def hit_rate(self) -> float:
        """Cached tokens as a share of the tokens looked up; 0 before the first lookup."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0

    @classmethod
    def of(
        cls, pool: BlockPool, block_tokens: int, requests: Iterable[RequestBlocks], counters: CacheCounters
    ) -> CacheStats:
        empty_slots = 0
        for request in requests:
            # Only private blocks can have empty slots, and each of them is in this table alone.
            empty_slots += len(request.blocks) * block_tokens - request.num_computed_tokens
        used_slots = pool.num_used_blocks * block_tokens
        return cls(
            num_blocks=pool.num_blocks,
            used_blocks=pool.num_used_blocks,
            idle_blocks=pool.num_idle_blocks,
            free_blocks=pool.num_free_blocks,
            used_slots=used_slots,
            used_tokens=used_slots - empty_slots,
            queried_tokens=counters.queried_tokens,
            hit_tokens=counters.hit_tokens,
            published_blocks=counters.published_blocks,
            duplicate_blocks=counters.duplicate_blocks,
            evicted_blocks=pool.num_evictions,
        )
