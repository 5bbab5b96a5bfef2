"""A block's name stands for its tokens, its history and its salt, the same in every process."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.kvcache import hash_block, hash_root, make_salt

token_ids = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=16)


def test_the_hash_is_the_same_in_every_process_and_release() -> None:
    # Recorded once. A change makes every stored hash worthless: then the word "kvwise.block" must change too.
    block_hash = hash_block(hash_root(16, make_salt("adapter")), tuple(range(16)))
    assert block_hash.hex() == "92037cd61474a71cf4b42fa1280bf5338a1e9bc9e451c6331710a1a93450fad1"


@given(token_ids, token_ids)
def test_different_tokens_have_different_hashes(one: list[int], other: list[int]) -> None:
    root = hash_root(16)
    assert (hash_block(root, one) == hash_block(root, other)) == (one == other)


@given(token_ids, token_ids, token_ids)
def test_the_history_is_part_of_the_hash(first: list[int], other_first: list[int], last: list[int]) -> None:
    root = hash_root(16)
    hashes = [hash_block(hash_block(root, tokens), last) for tokens in (first, other_first)]
    assert (hashes[0] == hashes[1]) == (first == other_first)


def test_salt_and_block_size_are_part_of_the_hash() -> None:
    roots = {hash_root(16), hash_root(16, "a"), hash_root(16, "b"), hash_root(32), hash_root(32, "a")}
    assert len(roots) == 5


@given(st.lists(st.text()), st.lists(st.text()))
def test_salts_of_different_keys_differ(one: list[str], other: list[str]) -> None:
    assert (make_salt(*one) == make_salt(*other)) == (one == other)


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_an_id_that_does_not_fit_is_refused_not_wrapped(token_id: int) -> None:
    with pytest.raises(struct.error):
        hash_block(hash_root(16), [token_id])
