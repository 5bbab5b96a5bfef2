"""The KV cache's bookkeeping: which blocks hold whose tokens. Holds no tensors; times nothing; knows no scheduler.

A step of the engine, in this order:

    release the preempted → admit the new → reserve for all → run → commit each, or abandon each

Admissions come before reservations because giving out a block may evict a prefix that was matched. `match_prefix`,
`can_x`, `count_x` and the properties are pure; everything else mutates. A block id stands for all layers; the slot of
position p is block_table[p // block_tokens] · block_tokens + p % block_tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvwise.errors import KvwiseError
from kvwise.kvcache.block_hash import hash_block, hash_root
from kvwise.kvcache.block_pool import BlockPool, OutOfBlocks
from kvwise.kvcache.prefix_index import PrefixIndex, PublishedBlock
from kvwise.kvcache.request_blocks import CachedPrefix, RequestBlocks, Reservation
from kvwise.kvcache.stats import CacheCounters, CacheStats
from kvwise.spec.kv import BLOCK_TOKENS
from kvwise.units import ceil_div


class ProtocolError(KvwiseError):
    """A call that the cache's protocol does not allow, such as two reservations for one request: always a bug."""


class KVCache:
    """Blocks, block tables and the prefix index of one pool of `num_blocks` blocks."""

    def __init__(self, num_blocks: int, block_tokens: int = BLOCK_TOKENS) -> None:
        if num_blocks < 1 or block_tokens < 1:
            raise ProtocolError(
                f"a pool of {num_blocks} blocks of {block_tokens} tokens", expected="at least 1 of each"
            )
        self.block_tokens = block_tokens
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex()
        self.requests: dict[str, RequestBlocks] = {}
        self.counters = CacheCounters()

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    @property
    def num_available_blocks(self) -> int:
        """Blocks that can be given out now: free ones and idle cached ones."""
        return self.pool.num_available_blocks

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.requests

    # Looking up and admitting

    def match_prefix(self, token_ids: Sequence[int], salt: str = "") -> CachedPrefix:
        """The longest prefix of `token_ids` that is cached under `salt`. Pure.

        Whole blocks only, and at most (L−1) // block_tokens of them, so that the last token is always computed.
        """
        size, root_hash = self.block_tokens, hash_root(self.block_tokens, salt)
        blocks: list[int] = []
        hashes: list[bytes] = []
        parent_hash = root_hash
        for start in range(0, (len(token_ids) - 1) // size * size, size):
            parent_hash = hash_block(parent_hash, token_ids[start : start + size])
            block = self.index.find(parent_hash)
            if block is None:
                break
            blocks.append(block)
            hashes.append(parent_hash)
        return CachedPrefix(len(blocks) * size, tuple(blocks), tuple(hashes), root_hash, len(token_ids))

    def empty_prefix(self, salt: str = "") -> CachedPrefix:
        """For a request that must compute every token itself (it wants logits of its prompt). Pure."""
        return CachedPrefix(0, (), (), hash_root(self.block_tokens, salt), 0)

    def count_idle(self, prefix: CachedPrefix) -> int:
        """Blocks of `prefix` that nobody uses: admitting it takes as many from `num_available_blocks`. Pure."""
        ref_counts = self.pool.ref_counts
        return sum(ref_counts[block] == 0 for block in prefix.blocks)

    def can_admit(self, prefix: CachedPrefix, num_tokens: int) -> bool:
        """Would `admit` and then `reserve` of `num_tokens` more tokens succeed? Pure."""
        num_new = ceil_div(prefix.num_cached_tokens + num_tokens, self.block_tokens) - len(prefix.blocks)
        return num_new + self.count_idle(prefix) <= self.num_available_blocks

    def admit(self, request_id: str, prefix: CachedPrefix) -> None:
        """Starts a request whose first `prefix.num_cached_tokens` tokens are computed already.

        Adds a reference to each shared block; takes no new ones. Raises ProtocolError for a known request or a
        prefix that is no longer cached; nothing changes then.
        """
        if request_id in self.requests:
            raise ProtocolError(f"request {request_id!r} is in the cache already", action="release it first")
        for block, block_hash in zip(prefix.blocks, prefix.hashes, strict=True):
            if self.index.find(block_hash) != block:
                raise ProtocolError(f"block {block} no longer holds the matched prefix", action="match it again")
        for block in prefix.blocks:
            self.pool.share(block)
        self.requests[request_id] = RequestBlocks(prefix)
        self.counters.queried_tokens += prefix.num_queried_tokens
        self.counters.hit_tokens += prefix.num_cached_tokens

    # One step: reserve, then commit or abandon

    def can_reserve(self, request_id: str, num_tokens: int) -> bool:
        """Would `reserve` of `num_tokens` more tokens succeed? Pure. Raises ProtocolError for an unknown request."""
        return self._num_missing(self._request(request_id), num_tokens) <= self.num_available_blocks

    def reserve(self, request_id: str, token_ids: Sequence[int]) -> Reservation:
        """Extends the block table so that the K and V of `token_ids`, the next to be computed, have slots.

        All or nothing. May evict idle blocks. Raises OutOfBlocks, or ProtocolError for an unknown request, for no
        tokens, or while another reservation of the request is open; nothing changes then.
        """
        request = self._settled(request_id)
        if not token_ids:
            raise ProtocolError(f"request {request_id!r} reserves no tokens", expected="at least 1")
        num_missing = self._num_missing(request, len(token_ids))
        if num_missing > 0:
            self._check_available(num_missing)
            for _ in range(num_missing):
                request.blocks.append(self._take_block())
        start = request.num_computed_tokens
        reservation = Reservation(request_id, tuple(token_ids), start, start + len(token_ids), num_missing)
        request.reservation = reservation
        return reservation

    def commit(self, reservation: Reservation, num_accepted: int | None = None) -> tuple[int, ...]:
        """Counts the first `num_accepted` reserved tokens (all by default) as computed; publishes finished blocks.

        Blocks that only rejected tokens needed are given back. A block whose content is published already (another
        request computed the same tokens, so by the numbers contract the same K and V) is not published twice: the
        block table takes the published block in its place and the copy becomes free. Returns the table indices
        replaced so, mostly none: whoever keeps a copy of the table must read those entries again. Raises
        ProtocolError for a reservation that is not open or fewer reserved than accepted tokens; nothing changes then.
        """
        request = self._close(reservation)
        num_reserved = len(reservation.token_ids)
        if num_accepted is None or num_accepted == num_reserved:
            request.tail += reservation.token_ids
            request.num_computed_tokens = reservation.stop
        else:
            if not 0 <= num_accepted < num_reserved:
                raise ProtocolError(f"{num_accepted} accepted tokens", expected=f"0 to {num_reserved}")
            request.tail += reservation.token_ids[:num_accepted]
            request.num_computed_tokens = reservation.start + num_accepted
            self._drop_from(request, ceil_div(request.num_computed_tokens, self.block_tokens))
        request.reservation = None
        return self._publish(request) if len(request.tail) >= self.block_tokens else ()

    def abandon(self, reservation: Reservation) -> None:
        """Undoes `reserve`: same table, same computed tokens. What it evicted stays evicted: it may be overwritten.

        Raises ProtocolError for a reservation that is not open.
        """
        request = self._close(reservation)
        self._drop_from(request, len(request.blocks) - reservation.num_new_blocks)
        request.reservation = None

    # Sharing and ending

    def can_fork(self, parent_id: str) -> bool:
        """Would `fork` succeed? Pure. Raises ProtocolError for an unknown request."""
        return not self._request(parent_id).tail or self.num_available_blocks > 0

    def fork(self, parent_id: str, child_id: str) -> tuple[tuple[int, int], ...]:
        """Starts `child_id` with the parent's computed tokens: full blocks are shared, a partial last one copied.

        Returns the copies (source block, destination block), at most one. They must be carried out in the order
        they were returned, before the next step writes anything. Raises OutOfBlocks, or ProtocolError for an unknown
        parent, a known child or a parent with an open reservation; nothing changes then.
        """
        parent = self._settled(parent_id)
        if child_id in self.requests:
            raise ProtocolError(f"request {child_id!r} is in the cache already", action="release it first")
        if parent.tail:
            self._check_available(1)
        num_full = parent.num_computed_tokens // self.block_tokens
        child = RequestBlocks(CachedPrefix(parent.num_computed_tokens, (), (), parent.root_hash, 0))
        child.chain_hash = parent.chain_hash
        child.blocks = parent.blocks[:num_full]
        for block in child.blocks:
            self.pool.share(block)
        self.requests[child_id] = child
        if not parent.tail:
            return ()
        child.tail = parent.tail.copy()
        child.blocks.append(self._take_block())
        return ((parent.blocks[-1], child.blocks[-1]),)

    def truncate(self, request_id: str, num_tokens: int) -> int:
        """Forgets computed tokens from `num_tokens` on; returns how many are left.

        Exact inside the private tail. A published block is never written again, so a cut inside one falls back to
        the block's start: at most block_tokens − 1 tokens are then computed again. Never fails for want of blocks.
        Raises ProtocolError for an unknown request, an open reservation or more tokens than are computed.
        """
        request = self._settled(request_id)
        if not 0 <= num_tokens <= request.num_computed_tokens:
            raise ProtocolError(f"truncation to {num_tokens} tokens", expected=f"0 to {request.num_computed_tokens}")
        num_full = num_tokens // self.block_tokens
        if num_full == request.num_computed_tokens // self.block_tokens:
            del request.tail[num_tokens % self.block_tokens :]
            request.num_computed_tokens = num_tokens
        else:
            request.tail.clear()
            request.num_computed_tokens = num_full * self.block_tokens
            request.chain_hash = self.index[request.blocks[num_full - 1]].hash if num_full else request.root_hash
        self._drop_from(request, ceil_div(request.num_computed_tokens, self.block_tokens))
        return request.num_computed_tokens

    def release(self, request_id: str) -> None:
        """Ends a request: published blocks stay cached until they are evicted, the others become free.

        The table is dropped from its end, so that eviction takes the end of a prefix before its beginning. Raises
        ProtocolError for an unknown request or an open reservation.
        """
        self._drop_from(self._settled(request_id), 0)
        del self.requests[request_id]

    # Reading

    def block_table(self, request_id: str) -> Sequence[int]:
        """Block ids in order of position. Not a copy: valid until the next call that mutates this request."""
        return self._request(request_id).blocks

    def slot_mapping(self, request_id: str, start: int, stop: int) -> list[int]:
        """The slots of positions [start, stop). Raises ProtocolError for positions that have none."""
        size, blocks = self.block_tokens, self._request(request_id).blocks
        if not 0 <= start <= stop <= len(blocks) * size:
            raise ProtocolError(f"slots of positions {start} to {stop}", expected=f"within 0 to {len(blocks) * size}")
        if stop - start == 1:
            return [blocks[start // size] * size + start % size]
        slots: list[int] = []
        while start < stop:
            end = min(stop, start - start % size + size)
            slot = blocks[start // size] * size + start % size
            slots.extend(range(slot, slot + end - start))
            start = end
        return slots

    def num_computed_tokens(self, request_id: str) -> int:
        """Tokens whose K and V are in the cache, cached ones included; an open reservation does not count."""
        return self._request(request_id).num_computed_tokens

    def num_cached_tokens(self, request_id: str) -> int:
        """Tokens that were in the cache when the request was admitted or forked."""
        return self._request(request_id).num_cached_tokens

    def computed_token_ids(self, request_id: str) -> list[int]:
        """The ids of the computed tokens, from the published blocks and the private tail. Linear in their number."""
        request = self._request(request_id)
        full = request.blocks[: request.num_computed_tokens // self.block_tokens]
        return [token for block in full for token in self.index[block].token_ids] + request.tail

    def count_freed_by(self, request_ids: Iterable[str]) -> int:
        """By how much releasing all of these requests would raise `num_available_blocks`. Pure."""
        uses: dict[int, int] = {}
        for request_id in request_ids:
            for block in self._request(request_id).blocks:
                uses[block] = uses.get(block, 0) + 1
        ref_counts = self.pool.ref_counts
        return sum(ref_counts[block] == count for block, count in uses.items())

    def stats(self) -> CacheStats:
        """A snapshot. Linear in the number of requests."""
        return CacheStats.of(self.pool, self.block_tokens, self.requests.values(), self.counters)

    # Inside

    def _request(self, request_id: str) -> RequestBlocks:
        try:
            return self.requests[request_id]
        except KeyError:
            raise ProtocolError(f"request {request_id!r} is not in the cache", action="admit it first") from None

    def _settled(self, request_id: str) -> RequestBlocks:
        request = self._request(request_id)
        if request.reservation is not None:
            raise ProtocolError(f"request {request_id!r} has an open reservation", action="commit or abandon it first")
        return request

    def _close(self, reservation: Reservation) -> RequestBlocks:
        request = self._request(reservation.request_id)
        if request.reservation is not reservation:
            raise ProtocolError(f"the reservation of request {reservation.request_id!r} is not open")
        return request

    def _num_missing(self, request: RequestBlocks, num_tokens: int) -> int:
        return ceil_div(request.num_computed_tokens + num_tokens, self.block_tokens) - len(request.blocks)

    def _check_available(self, num_blocks: int) -> None:
        if num_blocks > self.num_available_blocks:
            raise OutOfBlocks(
                f"{num_blocks} blocks asked for, {self.num_available_blocks} available", action="ask can_x first"
            )

    def _take_block(self) -> int:
        block = self.pool.take()
        self.index.forget(block)
        return block

    def _drop_from(self, request: RequestBlocks, first: int) -> None:
        blocks, index, pool = request.blocks, self.index, self.pool
        while len(blocks) > first:
            block = blocks.pop()
            pool.drop(block, keep=block in index)

    def _publish(self, request: RequestBlocks) -> tuple[int, ...]:
        size, tail, blocks = self.block_tokens, request.tail, request.blocks
        first = (request.num_computed_tokens - len(tail)) // size
        num_full = len(tail) // size
        replaced: list[int] = []
        for i in range(num_full):
            token_ids = tuple(tail[i * size : (i + 1) * size])
            block_hash = hash_block(request.chain_hash, token_ids)
            published, depth = self.index.find(block_hash), first + i
            if published is None:
                content = PublishedBlock(block_hash, request.chain_hash, token_ids, depth)
                self.index.publish(blocks[depth], content)
            else:
                self.pool.share(published)
                self.pool.drop(blocks[depth], keep=False)
                blocks[depth] = published
                replaced.append(depth)
            request.chain_hash = block_hash
        del tail[: num_full * size]
        self.counters.published_blocks += num_full - len(replaced)
        self.counters.duplicate_blocks += len(replaced)
        return tuple(replaced)
