"""The integrity check catches each kind of corruption, by the name of the invariant that it breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvwise.errors import IntegrityError
from kvwise.kvcache import KVCache, check_integrity

Corruption = Callable[[KVCache], object]


@pytest.fixture
def cache() -> KVCache:
    """a and b share two blocks and have private tails; b has an open reservation; c's blocks are idle; some are free.

    a: [0][1][2..]   b: [0][1][3..][4]   idle, least recent first: 6, 5   free: 7, 8, 9
    """
    cache = KVCache(10, block_tokens=4)
    for name in ("a", "b"):
        prefix = cache.match_prefix(range(10))
        cache.admit(name, prefix)
        cache.commit(cache.reserve(name, range(prefix.num_cached_tokens, 10)))
    cache.reserve("b", range(100, 105))
    cache.admit("c", cache.empty_prefix())
    cache.commit(cache.reserve("c", range(50, 58)))
    cache.release("c")
    check_integrity(cache)
    assert list(cache.block_table("a")) == [0, 1, 2]
    assert list(cache.block_table("b")) == [0, 1, 3, 4]
    assert list(cache.pool.idle_blocks()) == [6, 5]
    return cache


def set_content(block: int, **changes: object) -> Corruption:
    def corrupt(cache: KVCache) -> None:
        cache.index._published[block] = cache.index[block]._replace(**changes)

    return corrupt


def set_request(name: str, **changes: object) -> Corruption:
    def corrupt(cache: KVCache) -> None:
        for key, value in changes.items():
            setattr(cache.requests[name], key, value)

    return corrupt


def add_reference(block: int, count: int) -> Corruption:
    def corrupt(cache: KVCache) -> None:
        cache.pool.ref_counts[block] += count

    return corrupt


def share_private_block(cache: KVCache) -> None:
    cache.requests["a"].blocks[2] = 3
    cache.pool.ref_counts[3] = 2
    cache.pool.ref_counts[2] = 0
    cache.pool._free.append(2)


def publish_private_block(cache: KVCache) -> None:
    content = cache.index[5]
    cache.index.publish(2, content._replace(hash=b"x" * 32))


def forget_first_idle_block(cache: KVCache) -> None:
    """Evicts the beginning of c's prefix before its end."""
    cache.pool._idle.pop(5)
    cache.pool._free.append(5)
    cache.index.forget(5)


def swap_hashes(cache: KVCache) -> None:
    index = cache.index
    one, other = index[5].hash, index[6].hash
    index._block_by_hash[one], index._block_by_hash[other] = 6, 5


def open_reservation(**changes: object) -> Corruption:
    def corrupt(cache: KVCache) -> None:
        reservation = cache.requests["b"].reservation
        assert reservation is not None
        cache.requests["b"].reservation = reservation._replace(**changes)

    return corrupt


CORRUPTIONS: dict[str, tuple[str, Corruption]] = {
    "a free block twice in the list": ("block_states", lambda c: c.pool._free.append(7)),
    "a used block in the free list": ("block_states", lambda c: c.pool._free.append(0)),
    "an idle block in the free list": ("block_states", lambda c: c.pool._free.append(5)),
    "a used block among the idle": ("block_states", lambda c: c.pool._idle.update({1: None})),
    "a lost free block": ("block_states", lambda c: c.pool._free.pop()),
    "a lost idle block": ("block_states", lambda c: c.pool._idle.popitem()),
    "a block that is not in the pool": ("block_states", lambda c: c.pool._free.append(10)),
    "a lost used block": ("block_states", lambda c: c.requests["a"].blocks.pop()),
    "a count for a block that is not in the pool": ("block_states", lambda c: c.pool.ref_counts.append(0)),
    "a reference too many": ("ref_counts", add_reference(0, 1)),
    "a reference too few": ("ref_counts", add_reference(1, -1)),
    "a reference to an idle block": ("ref_counts", add_reference(6, 1)),
    "a reference to a free block": ("ref_counts", add_reference(8, 1)),
    "a table with a block twice": ("ref_counts", lambda c: c.requests["a"].blocks.append(0)),
    "a request that vanished with its references": ("block_states", lambda c: c.requests.pop("a")),
    "an idle block that is not published": ("idle_blocks", lambda c: c.index.forget(6)),
    "a free block that is published": (
        "idle_blocks",
        lambda c: c.index.publish(7, c.index[5]._replace(hash=b"x" * 32)),
    ),
    "two hashes that find each other's block": ("index", swap_hashes),
    "a hash that finds nothing": ("index", lambda c: c.index._block_by_hash.pop(c.index[0].hash)),
    "a hash too many": ("index", lambda c: c.index._block_by_hash.update({b"x" * 32: 0})),
    "a published block that is not full": ("index", set_content(0, token_ids=(0, 1, 2))),
    "other tokens under the same hash": ("hash_chain", set_content(1, token_ids=(9, 9, 9, 9))),
    "another parent under the same hash": ("hash_chain", set_content(1, parent_hash=b"x" * 32)),
    "a depth that does not follow": ("hash_chain", set_content(1, depth=2)),
    "a first block with a parent": ("hash_chain", set_content(1, depth=0)),
    "a cached block whose parent is gone": ("prefix_closed", forget_first_idle_block),
    "idle blocks in the wrong order": ("lru_order", lambda c: c.pool._idle.move_to_end(6)),
    "a table that is too long": ("block_tables", set_request("b", reservation=None)),
    "fewer computed tokens than the table holds": ("block_tables", set_request("a", num_computed_tokens=8)),
    "more computed tokens than the table holds": ("block_tables", set_request("a", num_computed_tokens=13)),
    "computed tokens that the tail lacks": ("tail", set_request("a", num_computed_tokens=11)),
    "a tail with a token too many": ("tail", lambda c: c.requests["a"].tail.append(1)),
    "a tail that lost its tokens": ("tail", set_request("b", tail=[])),
    "a private block in two tables": ("shared_blocks", share_private_block),
    "full blocks in the wrong order": ("shared_blocks", set_request("a", blocks=[1, 0, 2])),
    "a root of another salt": ("shared_blocks", set_request("a", root_hash=b"x" * 32)),
    "a chain that would continue another block": ("shared_blocks", set_request("a", chain_hash=b"x" * 32)),
    "a full block that is not published": ("shared_blocks", set_request("a", num_computed_tokens=12)),
    "a reservation that starts elsewhere": ("reservations", open_reservation(start=9)),
    "a reservation that ends elsewhere": ("reservations", open_reservation(stop=16)),
    "a reservation of another request": ("reservations", open_reservation(request_id="a")),
    "a reservation with other tokens": ("reservations", open_reservation(token_ids=(1,))),
    "more hits than lookups": ("counters", lambda c: setattr(c.counters, "hit_tokens", 10**6)),
    "a published block that nobody counted": ("counters", lambda c: setattr(c.counters, "published_blocks", 0)),
    "an eviction that never was": ("counters", lambda c: setattr(c.pool, "num_evictions", 3)),
    "a negative number of cached tokens": ("counters", set_request("a", num_cached_tokens=-1)),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption_is_caught_by_name(cache: KVCache, name: str) -> None:
    invariant, corrupt = CORRUPTIONS[name]
    corrupt(cache)
    with pytest.raises(IntegrityError, match=f"^{invariant}:"):
        check_integrity(cache)


def test_a_published_block_that_a_step_would_write_into_is_caught(cache: KVCache) -> None:
    publish_private_block(cache)
    with pytest.raises(IntegrityError):
        check_integrity(cache)


def test_every_invariant_of_the_docstring_has_a_corruption() -> None:
    documented = {line.split()[0] for line in check_integrity_lines() if line.startswith("    ") and line[4] != " "}
    assert documented == {invariant for invariant, _ in CORRUPTIONS.values()}


def check_integrity_lines() -> list[str]:
    from kvwise.kvcache import integrity

    return (integrity.__doc__ or "").splitlines()


def test_the_check_changes_nothing(cache: KVCache) -> None:
    before = list(cache.pool.idle_blocks()), list(cache.pool.free_blocks()), list(cache.pool.ref_counts)
    check_integrity(cache)
    assert (list(cache.pool.idle_blocks()), list(cache.pool.free_blocks()), list(cache.pool.ref_counts)) == before
