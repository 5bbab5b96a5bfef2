"""What is published: hash → block, and for each such block what it holds. Knows no ref counts and no requests.

A published block is full and immutable. One hash has one block and one block has one hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class PublishedBlock(NamedTuple):
    """`depth` is the block's place in its sequence: it holds positions depth·block_tokens onward."""

    hash: bytes
    parent_hash: bytes
    token_ids: tuple[int, ...]
    depth: int


class PrefixIndex:
    __slots__ = ("_block_by_hash", "_published")

    def __init__(self) -> None:
        self._block_by_hash: dict[bytes, int] = {}
        self._published: dict[int, PublishedBlock] = {}

    def __len__(self) -> int:
        return len(self._published)

    def __contains__(self, block: int) -> bool:
        """Is this block id published?"""
        return block in self._published

    def __getitem__(self, block: int) -> PublishedBlock:
        return self._published[block]

    def find(self, block_hash: bytes) -> int | None:
        """The block that holds this content, None if no block does."""
        return self._block_by_hash.get(block_hash)

    def publish(self, block: int, content: PublishedBlock) -> None:
        """The hash must not be published yet."""
        self._block_by_hash[content.hash] = block
        self._published[block] = content

    def forget(self, block: int) -> None:
        """Does nothing for a block that is not published."""
        content = self._published.pop(block, None)
        if content is not None:
            del self._block_by_hash[content.hash]

    def blocks(self) -> Iterator[int]:
        return iter(self._published)

    def hashes(self) -> Iterator[tuple[bytes, int]]:
        return iter(self._block_by_hash.items())
