"""How a pool of K and V is given out, step by step, to requests that wait in line: in one piece each, or in blocks.

Time is counted in steps. A request is prefilled in the step that admits it and then grows by a token a step; its last
token is never kept. Whoever is first in line is admitted as soon as there is room, and nobody before. All shares are
means over the steps until nobody waits.

    pool   | stored | later | internal          | external, unused |
             tokens   slots   slots that are      slots that nobody
             kept     kept    given out and       holds
                      soon    never used

External: enough for the next in line, but in pieces. Unused: less than it needs.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from kvwise.errors import UsageError
from kvwise.units import ceil_div

Lengths = Sequence[tuple[int, int]]  # (prompt tokens, output tokens)
Reserve = Callable[[int, int], int]  # of a prompt and its output, the slots that are set aside


@dataclass(frozen=True, slots=True)
class Use:
    """Shares of the pool that sum to 1, requests held at a time, and preemptions for each request served."""

    stored: float
    later: float
    internal: float
    external: float
    unused: float
    requests: float
    preempted: float = 0.0


def kept_tokens(prompt: int, output: int) -> int:
    """Tokens of a finished request that were kept: the last one that is drawn never is."""
    return prompt + output - 1


def by_maximum(longest: int) -> Reserve:
    """Room for the longest that a request may become."""
    return lambda _prompt, _output: longest


def by_power_of_two(prompt: int, output: int) -> int:
    """The output is known to within a factor of two."""
    return prompt + (1 << (output - 1).bit_length())


def by_oracle(prompt: int, output: int) -> int:
    """The output is known before it is drawn."""
    return kept_tokens(prompt, output)


def check_waits(steps: int) -> None:
    """Raise UsageError where there was no step in which somebody waited."""
    if not steps:
        raise UsageError("all requests fit into the pool at once", expected="so many that somebody waits")


@dataclass(slots=True)
class _Totals:
    """Sums over steps; turned into shares at the end."""

    stored: float = 0.0
    later: float = 0.0
    internal: float = 0.0
    external: float = 0.0
    unused: float = 0.0
    requests: float = 0.0
    steps: int = 0

    def use(self, pool_tokens: int, preempted: float = 0.0) -> Use:
        check_waits(self.steps)
        slots = self.steps * pool_tokens
        shares = {f.name: getattr(self, f.name) / slots for f in fields(self)[:5]}
        return Use(**shares, requests=self.requests / self.steps, preempted=preempted)


class _Holes:
    """Free pieces of the pool in order of address. The first that is large enough is taken from."""

    def __init__(self, size: int) -> None:
        self._holes = [(0, size)]

    def take(self, size: int) -> int | None:
        for i, (start, there) in enumerate(self._holes):
            if there >= size:
                if there == size:
                    del self._holes[i]
                else:
                    self._holes[i] = (start + size, there - size)
                return start
        return None

    def give(self, start: int, size: int) -> None:
        insort(self._holes, (start, size))
        i = self._holes.index((start, size))
        for left in (i, i - 1):  # join with the next hole, then with the one before
            if 0 <= left < len(self._holes) - 1:
                (a, n), (b, m) = self._holes[left : left + 2]
                if a + n == b:
                    self._holes[left : left + 2] = [(a, n + m)]


def hold_in_one_piece(lengths: Lengths, pool_tokens: int, reserve: Reserve) -> Use:
    """Each request holds one run of slots, from when it is admitted until it ends."""
    holes, totals = _Holes(pool_tokens), _Totals()
    running: list[tuple[int, int, int, int, int]] = []  # (ends at step, start, slots, tokens at its end, base)
    line = deque(lengths)
    now = reserved = final = offset = 0  # offset: Σ of each request's base, which is what it holds less the step
    while True:
        while running and running[0][0] == now:
            _, start, slots, done, base = heapq.heappop(running)
            holes.give(start, slots)
            reserved, final, offset = reserved - slots, final - done, offset - base
        while line:
            prompt, output = line[0]
            slots = reserve(prompt, output)
            place = holes.take(slots)
            if place is None:
                break
            line.popleft()
            done, base = kept_tokens(prompt, output), prompt - now
            heapq.heappush(running, (now + output, place, slots, done, base))
            reserved, final, offset = reserved + slots, final + done, offset + base
        if not line or not running:
            return totals.use(pool_tokens)
        until = running[0][0]
        steps, count = until - now, len(running)
        stored = steps * offset + count * (until * (until - 1) - now * (now - 1)) // 2
        free = pool_tokens - reserved
        totals.stored += stored
        totals.later += steps * final - stored
        totals.internal += steps * (reserved - final)
        totals.external += steps * free * (free >= slots)
        totals.unused += steps * free * (free < slots)
        totals.requests += steps * count
        totals.steps += steps
        now = until


class _Growing:
    """Requests that take a block when their last one is full: the running in order of arrival, and the line."""

    def __init__(self, lengths: Lengths, num_blocks: int, block_tokens: int) -> None:
        self.line = deque(lengths)
        self.free, self.size = num_blocks, block_tokens
        self.held: list[int] = []  # tokens of each that runs
        self.left: list[int] = []  # tokens it is still to draw
        self.advanced: list[bool] = []  # in this step
        self.num_preempted = 0

    def step(self) -> None:
        """Grow each by a token, whoever arrived last giving way or waiting; then admit, unless somebody lacked room."""
        preempted = self.num_preempted
        place = 0
        self.advanced = []
        while place < len(self.held):  # preemption shortens it
            if self.held[place] % self.size == 0:
                if not self.free and place < len(self.held) - 1:
                    self._preempt_last()
                if not self.free:
                    self.advanced.append(False)
                    break
                self.free -= 1
            self.held[place] += 1
            self.advanced.append(True)
            place += 1
        if self.num_preempted == preempted and all(self.advanced):
            self._admit()

    def _preempt_last(self) -> None:
        held = self.held.pop()
        self.line.appendleft((held + 1, self.left.pop()))  # the token that it drew last is known and not yet kept
        self.free += ceil_div(held, self.size)
        self.num_preempted += 1

    def _admit(self) -> None:
        while self.line:
            tokens, output = self.line[0]
            blocks = ceil_div(tokens, self.size)
            if blocks + len(self.held) > self.free:
                return
            self.line.popleft()
            self.free -= blocks
            self.held.append(tokens)
            self.left.append(output)
            self.advanced.append(True)

    def end_step(self) -> None:
        """Each that advanced drew a token; those that drew their last leave."""
        running = zip(self.held, self.left, self.advanced, strict=True)
        after = [(held, left - advanced) for held, left, advanced in running]
        self.free += sum(ceil_div(held, self.size) for held, left in after if not left)
        self.held = [held for held, left in after if left]
        self.left = [left for _, left in after if left]


def hold_in_blocks(lengths: Lengths, pool_tokens: int, block_tokens: int) -> Use:
    """Each request takes a block when it needs one, by the engine's policy (scheduler/fcfs.py).

    A request is admitted if its known tokens fit and leave a block to spare for each that runs. When there is no
    block, whoever arrived last gives its own up; the last itself waits.
    """
    pool, totals = _Growing(lengths, pool_tokens // block_tokens, block_tokens), _Totals()
    while True:
        pool.step()
        if not pool.line:
            return totals.use(pool_tokens, pool.num_preempted / len(lengths))
        stored, used = sum(pool.held), pool_tokens - pool.free * block_tokens
        totals.stored += stored
        totals.internal += used - stored
        totals.unused += pool_tokens - used
        totals.requests += len(pool.held)
        totals.steps += 1
        pool.end_step()
