"""Proves that a cache's state is consistent, from the state alone. Changes nothing; trusts no counter.

Invariants, by the name that the error gives:

    block_states   every block is exactly one of free, idle, used
    ref_counts     a block's count is the number of tables that hold it; used means count > 0; no table holds it twice
    idle_blocks    idle means published and without references
    index          hash → block and block → hash are inverse; a published block is full
    hash_chain     each hash follows from its parent's hash and its token ids; depths count up from a root
    prefix_closed  the parent of a published block is published: a cached block can always be reached
    lru_order      eviction takes a block before its parent
    block_tables   a table has as many blocks as its tokens, with those of an open reservation, need
    shared_blocks  full computed blocks are published and follow each other; all others are private, so that a step
                   never writes into a block that someone else reads
    tail           the private tail holds the ids of exactly the computed tokens that are not published
    reservations   an open reservation starts at the first token that is not computed
    counters       totals are possible
"""

from __future__ import annotations

from collections import Counter

from kvwise.errors import IntegrityError
from kvwise.kvcache.block_hash import hash_block
from kvwise.kvcache.cache import KVCache
from kvwise.kvcache.request_blocks import RequestBlocks
from kvwise.units import ceil_div


def check_integrity(cache: KVCache) -> None:
    """Raises IntegrityError that names the broken invariant. Linear in blocks and cached tokens."""
    _check_block_states(cache)
    _check_ref_counts(cache)
    _check_index(cache)
    _check_hash_chain(cache)
    _check_lru_order(cache)
    for request_id, request in cache.requests.items():
        _check_request(cache, request_id, request)
    _check_counters(cache)


def _require(holds: bool, invariant: str, detail: str) -> None:
    if not holds:
        raise IntegrityError(f"{invariant}: {detail}")


def _check_block_states(cache: KVCache) -> None:
    pool = cache.pool
    free, idle = list(pool.free_blocks()), list(pool.idle_blocks())
    used = {block for request in cache.requests.values() for block in request.blocks}
    _require(len(pool.ref_counts) == pool.num_blocks, "block_states", "one count per block")
    _require(len(set(free)) == len(free), "block_states", f"a block is free twice in {free}")
    for name, one, other in (("free", set(free), set(idle)), ("free", set(free), used), ("idle", set(idle), used)):
        _require(not one & other, "block_states", f"blocks {sorted(one & other)} are {name} and something else")
    missing = set(range(pool.num_blocks)) ^ (set(free) | set(idle) | used)
    _require(not missing, "block_states", f"blocks {sorted(missing)} are lost or foreign")
    _require(pool.num_used_blocks == len(used), "block_states", f"{pool.num_used_blocks} used, not {len(used)}")


def _check_ref_counts(cache: KVCache) -> None:
    uses: Counter[int] = Counter()
    for request_id, request in cache.requests.items():
        _require(len(set(request.blocks)) == len(request.blocks), "ref_counts", f"{request_id!r} holds a block twice")
        uses.update(request.blocks)
    for block, count in enumerate(cache.pool.ref_counts):
        _require(count == uses[block], "ref_counts", f"block {block} counts {count}, used by {uses[block]} tables")
    for block in cache.pool.idle_blocks():
        _require(block in cache.index, "idle_blocks", f"idle block {block} is not published")
    for block in cache.pool.free_blocks():
        _require(block not in cache.index, "idle_blocks", f"free block {block} is published")


def _check_index(cache: KVCache) -> None:
    index = cache.index
    by_hash = dict(index.hashes())
    for block in index.blocks():
        content = index[block]
        _require(by_hash.get(content.hash) == block, "index", f"the hash of block {block} finds another block")
        _require(len(content.token_ids) == cache.block_tokens, "index", f"published block {block} is not full")
    _require(len(by_hash) == len(index), "index", f"{len(by_hash)} hashes for {len(index)} blocks")


def _check_hash_chain(cache: KVCache) -> None:
    index = cache.index
    for block in index.blocks():
        content = index[block]
        expected = hash_block(content.parent_hash, content.token_ids)
        _require(content.hash == expected, "hash_chain", f"block {block} does not hash to its name")
        parent = index.find(content.parent_hash)
        if content.depth == 0:
            _require(parent is None, "hash_chain", f"block {block} at depth 0 has a parent block")
            continue
        _require(parent is not None, "prefix_closed", f"block {block} can't be reached: its parent is gone")
        if parent is not None:
            depth = index[parent].depth
            _require(depth == content.depth - 1, "hash_chain", f"block {block} follows one at depth {depth}")


def _check_lru_order(cache: KVCache) -> None:
    index, passed = cache.index, set[int]()
    for block in cache.pool.idle_blocks():
        parent = index.find(index[block].parent_hash)
        _require(parent not in passed, "lru_order", f"block {parent} is evicted before its child {block}")
        passed.add(block)


def _check_request(cache: KVCache, request_id: str, request: RequestBlocks) -> None:
    size, index, computed = cache.block_tokens, cache.index, request.num_computed_tokens
    reservation = request.reservation
    if reservation is not None:
        span = (reservation.start, reservation.stop, reservation.request_id)
        expected = (computed, computed + len(reservation.token_ids), request_id)
        _require(span == expected, "reservations", f"{request_id!r} reserves {span}, not {expected}")
    num_slots_needed = reservation.stop if reservation else computed
    _require(
        len(request.blocks) == ceil_div(num_slots_needed, size),
        "block_tables",
        f"{request_id!r} has {len(request.blocks)} blocks for {num_slots_needed} tokens",
    )
    num_full = computed // size
    parent_hash = request.root_hash
    for depth, block in enumerate(request.blocks[:num_full]):
        _require(block in index, "shared_blocks", f"full block {block} of {request_id!r} is not published")
        content = index[block]
        follows = content.parent_hash == parent_hash and content.depth == depth
        _require(follows, "shared_blocks", f"block {block} of {request_id!r} does not follow the one before")
        parent_hash = content.hash
    _require(request.chain_hash == parent_hash, "shared_blocks", f"{request_id!r} would chain to another block")
    for block in request.blocks[num_full:]:
        private = cache.pool.ref_counts[block] == 1 and block not in index
        _require(private, "shared_blocks", f"{request_id!r} may write into block {block}, which is shared")
    _require(len(request.tail) == computed % size, "tail", f"{request_id!r} has a tail of {len(request.tail)} tokens")
    _require(request.num_cached_tokens >= 0, "counters", f"{request_id!r} has a negative number of cached tokens")


def _check_counters(cache: KVCache) -> None:
    counters, stats = cache.counters, cache.stats()
    _require(0 <= counters.hit_tokens <= counters.queried_tokens, "counters", "more hits than tokens looked up")
    gone = counters.published_blocks - len(cache.index)
    _require(gone == cache.pool.num_evictions, "counters", f"{gone} blocks left the index, not by eviction")
    _require(0 <= stats.used_tokens <= stats.used_slots, "counters", "more tokens than slots")
