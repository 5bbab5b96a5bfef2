"""One request's place in the cache, and the two values that the protocol hands out. Knows no pool and no index.

    block table   [ b0 ][ b1 ][ b2 ][ b3 ]
                  └─published──┘└private─┘      published = num_computed_tokens // block_tokens
    positions     0 ... computed ... reserved
                              ▲ num_computed_tokens   ▲ reservation.stop

Published blocks may be in many tables and are never written. Private blocks are in one table.
"""

from __future__ import annotations

from typing import NamedTuple


class CachedPrefix(NamedTuple):
    """The longest cached prefix of some token ids, as a list of whole published blocks.

    `hashes[i]` names `blocks[i]`; `root_hash` is the parent of the first. Valid until the cache next gives out a
    block: `admit` before any `reserve`, and check the match again if something came between.
    """

    num_cached_tokens: int
    blocks: tuple[int, ...]
    hashes: tuple[bytes, ...]
    root_hash: bytes
    num_queried_tokens: int


class Reservation(NamedTuple):
    """Leave to write positions [start, stop) of one request, with `token_ids`, until commit or abandon."""

    request_id: str
    token_ids: tuple[int, ...]
    start: int
    stop: int
    num_new_blocks: int


class RequestBlocks:
    """Mutable bookkeeping of one request, owned by the cache alone."""

    __slots__ = ("blocks", "chain_hash", "num_cached_tokens", "num_computed_tokens", "reservation", "root_hash", "tail")

    def __init__(self, prefix: CachedPrefix) -> None:
        self.blocks = list(prefix.blocks)
        self.root_hash = prefix.root_hash
        # Hash of the last published block, or the root: the parent of the next one.
        self.chain_hash = prefix.hashes[-1] if prefix.hashes else prefix.root_hash
        # Token ids computed into the private blocks; fewer than block_tokens between commits.
        self.tail: list[int] = []
        self.num_computed_tokens = self.num_cached_tokens = prefix.num_cached_tokens
        self.reservation: Reservation | None = None
