"""Random use of a small cache against a simulated memory: what is read through a block table is what was written.

Each slot of the simulated memory holds (salt, all tokens up to and with this position), which is what K and V of a
position depend on. Blocks hold 4 tokens, and most requests follow one of three texts, two of which begin alike, so
that requests share, compute the same at once, and evict often.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvwise.kvcache import KVCache, OutOfBlocks, Reservation, check_integrity

BLOCK_TOKENS = 4
SALTS = ("", "adapter")
TEXTS = ((0,) * 40, (0,) * 9 + (1,) * 31, (1, 0) * 20)
texts = st.sampled_from(TEXTS)
lengths = st.integers(1, 22)

Tokens = tuple[int, ...]
Content = tuple[str, Tokens]


class CacheMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(1, 12))
    def make_cache(self, num_blocks: int) -> None:
        self.cache = KVCache(num_blocks, BLOCK_TOKENS)
        self.memory: list[Content | None] = [None] * (num_blocks * BLOCK_TOKENS)
        self.copies: list[tuple[int, int]] = []
        self.salts: dict[str, str] = {}
        self.computed: dict[str, list[int]] = {}
        self.reserved: dict[str, Reservation] = {}
        self.tables_before: dict[str, list[int]] = {}
        self.ran: set[str] = set()
        self.num_started = 0

    def new_id(self) -> str:
        self.num_started += 1
        return f"r{self.num_started}"

    def pick(self, data: Any, ids: set[str]) -> str:
        return data.draw(st.sampled_from(sorted(ids)), label="request")

    @property
    def settled(self) -> set[str]:
        return set(self.computed) - set(self.reserved)

    def read(self, blocks: Any, num_tokens: int) -> list[Content | None]:
        memory = self.memory.copy()
        carry_out(self.copies, memory)
        slots = [block * BLOCK_TOKENS + i for block in blocks for i in range(BLOCK_TOKENS)]
        return [memory[slot] for slot in slots[:num_tokens]]

    @rule(text=texts, length=lengths, salt=st.sampled_from(SALTS))
    def admit(self, text: Tokens, length: int, salt: str) -> None:
        self.start(text, length, salt)

    def start(self, text: Tokens, length: int, salt: str) -> str:
        prefix = self.cache.match_prefix(text[:length], salt)
        request_id = self.new_id()
        self.cache.admit(request_id, prefix)
        self.salts[request_id] = salt
        self.computed[request_id] = list(text[: prefix.num_cached_tokens])
        return request_id

    @rule(text=texts, length=lengths, salt=st.sampled_from(SALTS), finish=st.booleans())
    def answer(self, text: Tokens, length: int, salt: str, finish: bool) -> None:
        """A whole request in one rule, so that the others meet a cache with something in it."""
        request_id = self.start(text, length, salt)
        missing = text[len(self.computed[request_id]) : length]
        if self.cache.can_reserve(request_id, len(missing)):
            self.reserved[request_id] = self.cache.reserve(request_id, missing)
            self.run_step()
            self.ran.remove(request_id)
            self.cache.commit(self.reserved.pop(request_id))
            self.computed[request_id] += missing
        if finish:
            self.cache.release(request_id)
            del self.computed[request_id], self.salts[request_id]

    @rule(salt=st.sampled_from(SALTS))
    def admit_without_lookup(self, salt: str) -> None:
        request_id = self.new_id()
        self.cache.admit(request_id, self.cache.empty_prefix(salt))
        self.salts[request_id] = salt
        self.computed[request_id] = []

    @precondition(lambda self: self.settled)
    @rule(data=st.data(), text=texts, length=lengths)
    def reserve(self, data: Any, text: Tokens, length: int) -> None:
        request_id = self.pick(data, self.settled)
        num_computed = len(self.computed[request_id])
        tokens = text[num_computed : num_computed + length] or text[:length]
        table = list(self.cache.block_table(request_id))
        if self.cache.can_reserve(request_id, len(tokens)):
            self.reserved[request_id] = self.cache.reserve(request_id, tokens)
            self.tables_before[request_id] = table
        else:
            before = state(self.cache)
            with pytest.raises(OutOfBlocks):
                self.cache.reserve(request_id, tokens)
            assert state(self.cache) == before

    @precondition(lambda self: self.reserved)
    @rule()
    def run_step(self) -> None:
        """Copies first, then every open reservation writes its slots, all before anything is committed."""
        carry_out(self.copies, self.memory)
        self.copies.clear()
        for request_id, reservation in self.reserved.items():
            history = self.computed[request_id] + list(reservation.token_ids)
            slots = self.cache.slot_mapping(request_id, reservation.start, reservation.stop)
            for position, slot in zip(range(reservation.start, reservation.stop), slots, strict=True):
                block = slot // BLOCK_TOKENS
                assert block not in self.cache.index, "a published block would be written"
                assert self.cache.pool.ref_counts[block] == 1, "a shared block would be written"
                self.memory[slot] = (self.salts[request_id], tuple(history[: position + 1]))
        self.ran = set(self.reserved)

    @precondition(lambda self: self.ran)
    @rule(data=st.data(), accept_all=st.booleans())
    def commit(self, data: Any, accept_all: bool) -> None:
        request_id = self.pick(data, self.ran)
        reservation = self.reserved.pop(request_id)
        self.ran.remove(request_id)
        num_accepted = len(reservation.token_ids)
        if not accept_all:
            num_accepted = data.draw(st.integers(0, num_accepted), label="accepted")
        table = list(self.cache.block_table(request_id))
        replaced = self.cache.commit(reservation, num_accepted)
        self.computed[request_id] += reservation.token_ids[:num_accepted]
        after = list(self.cache.block_table(request_id))
        changed = [i for i, block in enumerate(after) if block != table[i]]
        assert list(replaced) == changed, "the caller is told of every entry that changed"

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def abandon(self, data: Any) -> None:
        request_id = self.pick(data, set(self.reserved))
        self.cache.abandon(self.reserved.pop(request_id))
        self.ran.discard(request_id)
        assert list(self.cache.block_table(request_id)) == self.tables_before[request_id]

    @precondition(lambda self: self.settled)
    @rule(data=st.data())
    def fork(self, data: Any) -> None:
        parent_id, child_id = self.pick(data, self.settled), self.new_id()
        if not self.cache.can_fork(parent_id):
            before = state(self.cache)
            with pytest.raises(OutOfBlocks):
                self.cache.fork(parent_id, child_id)
            assert state(self.cache) == before
            return
        self.copies += self.cache.fork(parent_id, child_id)
        self.salts[child_id] = self.salts[parent_id]
        self.computed[child_id] = self.computed[parent_id].copy()

    @precondition(lambda self: self.settled)
    @rule(data=st.data())
    def truncate(self, data: Any) -> None:
        request_id = self.pick(data, self.settled)
        tokens = self.computed[request_id]
        wanted = data.draw(st.integers(0, len(tokens)), label="tokens kept")
        kept = self.cache.truncate(request_id, wanted)
        assert wanted - (BLOCK_TOKENS - 1) <= kept <= wanted
        del tokens[kept:]

    @precondition(lambda self: self.settled)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        request_id = self.pick(data, self.settled)
        num_available = self.cache.num_available_blocks
        num_freed = self.cache.count_freed_by([request_id])
        self.cache.release(request_id)
        assert self.cache.num_available_blocks == num_available + num_freed
        del self.computed[request_id], self.salts[request_id]

    @rule(text=texts, length=st.integers(1, 40), salt=st.sampled_from(SALTS))
    def a_match_finds_what_memory_holds_and_nothing_else(self, text: Tokens, length: int, salt: str) -> None:
        tokens = text[:length]
        before = state(self.cache)
        prefix = self.cache.match_prefix(tokens, salt)
        assert state(self.cache) == before, "a match changes nothing"
        published = {tuple(self.read([block], BLOCK_TOKENS)): block for block in self.cache.index.blocks()}
        expected = []
        for stop in range(BLOCK_TOKENS, len(tokens), BLOCK_TOKENS):
            content = tuple((salt, tokens[: i + 1]) for i in range(stop - BLOCK_TOKENS, stop))
            if content not in published:
                break
            expected.append(published[content])
        assert prefix.blocks == tuple(expected)
        assert prefix.num_cached_tokens == len(expected) * BLOCK_TOKENS < len(tokens)

    @invariant()
    def every_invariant_holds(self) -> None:
        if hasattr(self, "cache"):
            check_integrity(self.cache)

    @invariant()
    def tables_lead_to_the_tokens(self) -> None:
        for request_id, tokens in getattr(self, "computed", {}).items():
            assert self.cache.num_computed_tokens(request_id) == len(tokens)
            assert self.cache.computed_token_ids(request_id) == tokens
            salt = self.salts[request_id]
            expected = [(salt, tuple(tokens[: i + 1])) for i in range(len(tokens))]
            assert self.read(self.cache.block_table(request_id), len(tokens)) == expected


def carry_out(copies: list[tuple[int, int]], memory: list[Content | None]) -> None:
    for source, destination in copies:
        held = memory[source * BLOCK_TOKENS : (source + 1) * BLOCK_TOKENS]
        memory[destination * BLOCK_TOKENS : (destination + 1) * BLOCK_TOKENS] = held


def state(cache: KVCache) -> Any:
    tables = {request_id: list(request.blocks) for request_id, request in cache.requests.items()}
    pool = (list(cache.pool.free_blocks()), list(cache.pool.idle_blocks()), list(cache.pool.ref_counts))
    return tables, pool, dict(cache.index.hashes())


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=150, stateful_step_count=50)
