"""Which blocks are free, idle or used, and which one is given out next. Knows no tokens, hashes or requests.

    free ──take──▶ used ──drop──▶ free           a block whose content nobody may find
                    ▲ └──drop(keep=True)──▶ idle    a published block: found by a later request, or evicted
                    ├──────────share──────────┘
                    └──────────take (evicts)──┘

Every operation takes constant time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from kvwise.errors import IntegrityError, KvwiseError


class OutOfBlocks(KvwiseError):
    """Blocks were asked for that `can_reserve`, `can_admit` or `can_fork` would have denied."""


class BlockPool:
    """`ref_counts[block]` counts the block tables that hold the block."""

    __slots__ = ("_free", "_idle", "num_blocks", "num_evictions", "ref_counts")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_evictions = 0
        self.ref_counts = [0] * num_blocks
        # A stack, lowest ids on top: the memory a small load touches stays small.
        self._free = list(range(num_blocks - 1, -1, -1))
        # Least recently used first. An OrderedDict, because popping a dict's first key is not constant time.
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    @property
    def num_idle_blocks(self) -> int:
        return len(self._idle)

    @property
    def num_available_blocks(self) -> int:
        """How many times `take` will succeed: free and idle blocks."""
        return len(self._free) + len(self._idle)

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - len(self._free) - len(self._idle)

    def take(self) -> int:
        """Gives out a block with one reference: a free one, else the least recently used idle one.

        The caller must forget what an evicted block held. Raises OutOfBlocks.
        """
        if self._free:
            block = self._free.pop()
        elif self._idle:
            block = self._idle.popitem(last=False)[0]
            self.num_evictions += 1
        else:
            raise OutOfBlocks(f"all {self.num_blocks} blocks are used", action="ask can_reserve first")
        self.ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        """Adds a reference to a used or idle block."""
        if self.ref_counts[block] == 0:
            del self._idle[block]
        self.ref_counts[block] += 1

    def drop(self, block: int, *, keep: bool) -> None:
        """Takes one reference away; the last one makes the block idle (`keep`: it is published) or free."""
        count = self.ref_counts[block] - 1
        if count < 0:
            raise IntegrityError(f"ref_counts: block {block} was dropped without a reference")
        self.ref_counts[block] = count
        if count == 0:
            if keep:
                self._idle[block] = None
            else:
                self._free.append(block)

    def free_blocks(self) -> Iterator[int]:
        """In the reverse of the order in which they will be given out. For checks and displays."""
        return iter(self._free)

    def idle_blocks(self) -> Iterator[int]:
        """Least recently used first: the order of eviction. For checks and displays."""
        return iter(self._idle)
