"""The pool gives free blocks first, then evicts in the order of last use."""

from __future__ import annotations

import pytest

from kvwise.errors import IntegrityError
from kvwise.kvcache import BlockPool, OutOfBlocks


def test_free_blocks_are_given_out_before_an_idle_one_is_evicted() -> None:
    pool = BlockPool(3)
    first = pool.take()
    pool.drop(first, keep=True)
    assert {pool.take(), pool.take()} == {0, 1, 2} - {first}
    assert pool.num_evictions == 0
    assert pool.take() == first
    assert pool.num_evictions == 1


def test_idle_blocks_are_evicted_in_order_of_last_use() -> None:
    pool = BlockPool(4)
    blocks = [pool.take() for _ in range(4)]
    for block in blocks:
        pool.drop(block, keep=True)
    pool.share(blocks[0])
    pool.drop(blocks[0], keep=True)
    assert [pool.take() for _ in range(4)] == [*blocks[1:], blocks[0]]


def test_a_block_with_a_reference_is_never_given_out() -> None:
    pool = BlockPool(2)
    shared, other = pool.take(), pool.take()
    pool.share(shared)
    pool.drop(shared, keep=True)
    assert pool.num_available_blocks == 0
    with pytest.raises(OutOfBlocks):
        pool.take()
    pool.drop(other, keep=False)
    assert pool.take() == other


def test_states_count_up_to_the_pool() -> None:
    pool = BlockPool(5)
    kept, dropped = pool.take(), pool.take()
    pool.take()
    pool.drop(kept, keep=True)
    pool.drop(dropped, keep=False)
    assert (pool.num_used_blocks, pool.num_idle_blocks, pool.num_free_blocks) == (1, 1, 3)


def test_dropping_without_a_reference_is_a_bug_that_shows() -> None:
    pool = BlockPool(1)
    with pytest.raises(IntegrityError, match="ref_counts"):
        pool.drop(0, keep=False)


def test_a_small_load_touches_only_the_lowest_blocks() -> None:
    pool = BlockPool(100)
    touched = set()
    for _ in range(50):
        blocks = [pool.take() for _ in range(3)]
        touched.update(blocks)
        for block in blocks:
            pool.drop(block, keep=False)
    assert touched == {0, 1, 2}
