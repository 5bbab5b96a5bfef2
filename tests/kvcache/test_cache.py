"""What the cache promises a caller, one promise a test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from kvwise.kvcache import KVCache, OutOfBlocks, ProtocolError, check_integrity


def compute(cache: KVCache, request_id: str, tokens: Sequence[int], *, salt: str = "") -> int:
    """Admits, computes what is not cached, and returns how many tokens were."""
    prefix = cache.match_prefix(tokens, salt)
    cache.admit(request_id, prefix)
    cache.commit(cache.reserve(request_id, tokens[prefix.num_cached_tokens :]))
    check_integrity(cache)
    return prefix.num_cached_tokens


@pytest.mark.parametrize(
    ("num_tokens", "num_cached"), [(1, 0), (15, 0), (16, 0), (17, 16), (32, 16), (33, 32), (48, 32), (49, 48)]
)
def test_the_last_prompt_token_is_always_computed(num_tokens: int, num_cached: int) -> None:
    cache = KVCache(8)
    tokens = list(range(num_tokens))
    compute(cache, "first", [*tokens, 1000])
    assert compute(cache, "second", tokens) == num_cached == (num_tokens - 1) // 16 * 16


def test_a_prefix_is_shared_while_in_use_and_found_after_release() -> None:
    cache = KVCache(8)
    compute(cache, "a", range(40))
    assert compute(cache, "b", range(40)) == 32
    assert cache.block_table("a")[:2] == cache.block_table("b")[:2]
    assert cache.block_table("a")[2] != cache.block_table("b")[2]
    cache.release("a")
    cache.release("b")
    assert compute(cache, "c", range(40)) == 32


def test_different_salts_do_not_share() -> None:
    cache = KVCache(8)
    compute(cache, "a", range(40), salt="one")
    assert compute(cache, "b", range(40), salt="two") == 0
    assert compute(cache, "c", range(40), salt="two") == 32


def test_outputs_are_published_too_so_that_a_next_turn_finds_them() -> None:
    cache = KVCache(8)
    compute(cache, "turn 1", range(10))
    for token in range(10, 40):
        cache.commit(cache.reserve("turn 1", [token]))
    cache.release("turn 1")
    assert compute(cache, "turn 2", [*range(40), 7, 7, 7]) == 32


def test_eviction_takes_the_end_of_a_prefix_before_its_beginning() -> None:
    cache = KVCache(4)
    compute(cache, "a", range(64))
    cache.release("a")
    compute(cache, "b", [500, 501])
    cache.release("b")
    assert cache.match_prefix(range(65)).num_cached_tokens == 48


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    cache = KVCache(3)
    for name, base in (("a", 100), ("b", 200), ("c", 300)):
        compute(cache, name, range(base, base + 16))
        cache.release(name)
    cache.admit("a again", cache.match_prefix(range(100, 117)))
    cache.release("a again")
    compute(cache, "d", range(400, 416))
    cached = {base for base in (100, 200, 300) if cache.match_prefix(range(base, base + 17)).num_cached_tokens}
    assert cached == {100, 300}


def test_reserve_takes_all_its_blocks_or_none() -> None:
    cache = KVCache(3)
    compute(cache, "a", range(20))
    cache.admit("b", cache.empty_prefix())
    assert cache.can_reserve("b", 16)
    assert not cache.can_reserve("b", 17)
    with pytest.raises(OutOfBlocks):
        cache.reserve("b", range(17))
    check_integrity(cache)
    assert list(cache.block_table("b")) == []
    cache.reserve("b", range(16))


def test_admission_counts_idle_blocks_of_its_own_prefix_as_taken() -> None:
    cache = KVCache(3)
    compute(cache, "a", range(32))
    cache.release("a")
    prefix = cache.match_prefix(range(33))
    assert (len(prefix.blocks), cache.count_idle(prefix), cache.num_available_blocks) == (2, 2, 3)
    assert cache.can_admit(prefix, 16)
    assert not cache.can_admit(prefix, 17)


def test_abandon_gives_back_what_was_reserved() -> None:
    cache = KVCache(8)
    compute(cache, "a", range(20))
    before = list(cache.block_table("a")), list(cache.pool.free_blocks())
    cache.abandon(cache.reserve("a", range(50)))
    assert (list(cache.block_table("a")), list(cache.pool.free_blocks())) == before
    assert cache.num_computed_tokens("a") == 20
    check_integrity(cache)


def test_abandoned_tokens_are_never_found() -> None:
    cache = KVCache(8)
    cache.admit("a", cache.empty_prefix())
    cache.abandon(cache.reserve("a", range(40)))
    assert cache.match_prefix(range(40)).num_cached_tokens == 0


def test_only_accepted_tokens_are_published_and_their_blocks_kept() -> None:
    cache = KVCache(8)
    cache.admit("a", cache.empty_prefix())
    cache.commit(cache.reserve("a", range(50)), num_accepted=17)
    check_integrity(cache)
    assert cache.num_computed_tokens("a") == 17
    assert len(cache.block_table("a")) == 2
    assert cache.match_prefix(range(50)).num_cached_tokens == 16


def test_the_same_content_computed_twice_at_once_keeps_one_block() -> None:
    cache = KVCache(8)
    for name in ("a", "b"):
        cache.admit(name, cache.match_prefix(range(40)))
    reservations = [cache.reserve(name, range(40)) for name in ("a", "b")]
    assert not set(cache.block_table("a")) & set(cache.block_table("b"))
    own_tail = cache.block_table("b")[2]
    assert cache.commit(reservations[0]) == ()
    assert cache.commit(reservations[1]) == (0, 1)
    assert cache.block_table("b") == [*cache.block_table("a")[:2], own_tail]
    assert cache.stats().used_blocks == 4
    assert cache.stats().duplicate_blocks == 2
    check_integrity(cache)


def test_a_request_that_skips_the_lookup_publishes_and_ends_up_sharing() -> None:
    cache = KVCache(8)
    compute(cache, "a", range(32))
    cache.admit("b", cache.empty_prefix())
    assert cache.commit(cache.reserve("b", range(32))) == (0, 1)
    assert cache.block_table("a") == cache.block_table("b")


def test_fork_shares_full_blocks_and_copies_the_partial_one() -> None:
    cache = KVCache(8)
    compute(cache, "parent", range(20))
    ((source, destination),) = cache.fork("parent", "child")
    assert cache.block_table("parent")[1] == source
    assert cache.block_table("child") == [cache.block_table("parent")[0], destination]
    for name, token in (("parent", 1), ("child", 2)):
        cache.commit(cache.reserve(name, [token]))
    assert cache.computed_token_ids("parent") == [*range(20), 1]
    assert cache.computed_token_ids("child") == [*range(20), 2]
    check_integrity(cache)


def test_fork_at_a_block_boundary_copies_nothing_and_needs_no_block() -> None:
    cache = KVCache(1)
    compute(cache, "parent", range(16))
    assert cache.can_fork("parent")
    assert cache.fork("parent", "child") == ()
    assert cache.stats().used_blocks == 1


def test_fork_without_a_block_changes_nothing() -> None:
    cache = KVCache(1)
    compute(cache, "parent", range(5))
    assert not cache.can_fork("parent")
    with pytest.raises(OutOfBlocks):
        cache.fork("parent", "child")
    assert "child" not in cache
    check_integrity(cache)


@pytest.mark.parametrize(("wanted", "kept"), [(40, 40), (39, 39), (32, 32), (31, 16), (16, 16), (15, 0), (0, 0)])
def test_truncate_is_exact_in_the_private_tail_and_falls_back_to_a_block_in_published_ones(
    wanted: int, kept: int
) -> None:
    cache = KVCache(8)
    compute(cache, "a", range(40))
    cache.fork("a", "b")
    assert cache.truncate("a", wanted) == kept
    assert cache.computed_token_ids("a") == list(range(kept))
    assert cache.computed_token_ids("b") == list(range(40))
    check_integrity(cache)
    cache.commit(cache.reserve("a", range(100, 140)))
    assert cache.computed_token_ids("a") == [*range(kept), *range(100, 140)]
    check_integrity(cache)


def test_slots_follow_the_block_table() -> None:
    cache = KVCache(8)
    compute(cache, "other", range(5))
    compute(cache, "a", range(100, 140))
    table = cache.block_table("a")
    expected = [table[position // 16] * 16 + position % 16 for position in range(48)]
    for start in range(49):
        for stop in range(start, 49):
            assert cache.slot_mapping("a", start, stop) == expected[start:stop]
    with pytest.raises(ProtocolError):
        cache.slot_mapping("a", 40, 49)


def test_blocks_that_only_the_named_requests_hold_are_counted_as_freed() -> None:
    cache = KVCache(8)
    compute(cache, "a", range(40))
    compute(cache, "b", range(40))
    assert cache.count_freed_by(["a"]) == 1
    assert cache.count_freed_by(["a", "b"]) == 4


def test_stats_add_up() -> None:
    cache = KVCache(8)
    compute(cache, "a", range(40))
    compute(cache, "b", range(35))
    compute(cache, "gone", range(200, 220))
    cache.release("gone")
    stats = cache.stats()
    assert (stats.used_blocks, stats.idle_blocks, stats.free_blocks) == (4, 1, 3)
    assert (stats.used_slots, stats.used_tokens, stats.fragmentation_slots) == (64, 43, 21)
    assert (stats.queried_tokens, stats.hit_tokens) == (95, 32)
    assert stats.hit_rate == 32 / 95
    assert (stats.published_blocks, stats.evicted_blocks) == (3, 0)


class TestProtocol:
    """A wrong call is refused, and leaves the cache as it was."""

    @pytest.fixture
    def cache(self) -> KVCache:
        cache = KVCache(4)
        compute(cache, "a", range(20))
        return cache

    def test_an_unknown_request(self, cache: KVCache) -> None:
        for call in (cache.release, cache.block_table, cache.can_fork, cache.num_computed_tokens):
            with pytest.raises(ProtocolError, match="not in the cache"):
                call("unknown")

    def test_a_known_request_admitted_or_forked_into(self, cache: KVCache) -> None:
        with pytest.raises(ProtocolError, match="already"):
            cache.admit("a", cache.empty_prefix())
        with pytest.raises(ProtocolError, match="already"):
            cache.fork("a", "a")

    def test_a_prefix_that_was_evicted_since(self, cache: KVCache) -> None:
        cache.release("a")
        prefix = cache.match_prefix(range(20))
        compute(cache, "b", range(100, 164))
        with pytest.raises(ProtocolError, match="match it again"):
            cache.admit("c", prefix)
        check_integrity(cache)

    def test_anything_while_a_reservation_is_open(self, cache: KVCache) -> None:
        cache.reserve("a", [1])
        calls = (
            lambda: cache.reserve("a", [2]),
            lambda: cache.release("a"),
            lambda: cache.truncate("a", 3),
            lambda: cache.fork("a", "b"),
        )
        for call in calls:
            with pytest.raises(ProtocolError, match="open reservation"):
                call()
        check_integrity(cache)

    def test_a_reservation_closed_twice(self, cache: KVCache) -> None:
        reservation = cache.reserve("a", [1])
        cache.commit(reservation)
        for close in (cache.commit, cache.abandon):
            with pytest.raises(ProtocolError, match="not open"):
                close(reservation)

    def test_a_reservation_of_nothing(self, cache: KVCache) -> None:
        with pytest.raises(ProtocolError, match="no tokens"):
            cache.reserve("a", [])

    @pytest.mark.parametrize("num_accepted", [-1, 3])
    def test_more_accepted_than_reserved(self, cache: KVCache, num_accepted: int) -> None:
        reservation = cache.reserve("a", [1, 2])
        with pytest.raises(ProtocolError, match="accepted"):
            cache.commit(reservation, num_accepted)
        cache.commit(reservation, 2)

    def test_a_pool_of_nothing(self) -> None:
        with pytest.raises(ProtocolError, match="at least 1"):
            KVCache(0)


def test_bookkeeping_and_policy_load_no_array_library() -> None:
    code = "import sys, kvwise.kvcache, kvwise.scheduler; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
