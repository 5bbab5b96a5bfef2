"""Requests that go on from earlier ones, drawn from where no trace with shared prefixes is at hand.

    begins      a prompt of its own
    goes on     the blocks of an earlier prompt but for its last one, and some tokens more

Which earlier one: the nearest at least so many requests back, among those of `least_blocks` blocks or more, for long
prompts are gone on from most. Knows no arrival times. The table at the end was made by tools/fit_sessions.py.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from kvwise.planner.simulation.lengths import Quantiles
from kvwise.planner.simulation.load import CONTENT_TOKENS, RequestSize
from kvwise.units import ceil_div


@dataclass(frozen=True, slots=True)
class Sessions:
    """going_on: share of requests that do, by `distance` requests. Tokens: of prompts that begin, of what is new in
    those that go on, and of the outputs of both."""

    going_on: float
    distance: Quantiles
    least_blocks: int
    first: Quantiles
    new: Quantiles
    first_output: Quantiles
    later_output: Quantiles
    source: str

    def sample(self, count: int, seed: int = 0) -> tuple[RequestSize, ...]:
        """`count` requests in the order in which they come, the same for the same seed."""
        rng = random.Random(seed)
        drawn: list[RequestSize] = []
        num_blocks = 0
        for number in range(count):
            going_on, distance, tokens, output = (rng.random() for _ in range(4))
            before = self._before(drawn, number - self.distance.at(distance)) if going_on < self.going_on else None
            shared = () if before is None else before.content[:-1]
            prompt = self.first.at(tokens) if before is None else len(shared) * CONTENT_TOKENS + self.new.at(tokens)
            num_new = ceil_div(prompt, CONTENT_TOKENS) - len(shared)
            content = (*shared, *range(num_blocks, num_blocks + num_new))
            num_blocks += num_new
            outputs = self.first_output if before is None else self.later_output
            drawn.append(RequestSize(prompt, outputs.at(output), content))
        return tuple(drawn)

    def _before(self, drawn: list[RequestSize], last: int) -> RequestSize | None:
        """The nearest long enough request that came no later than number `last`."""
        found = (drawn[i] for i in range(last, -1, -1) if len(drawn[i].content) >= self.least_blocks)
        return next(found, None)


# Fitted to Mooncake's synthetic trace (Qin et al., FAST 2025), github.com/kvcache-ai/Mooncake, FAST25-release/traces,
# Apache-2.0: 3,993 requests, 64 % of whose blocks are those of earlier ones. least_blocks: so that prompts have the
# trace's mean of 15,325 tokens.
MOONCAKE: Final = Sessions(
    going_on=0.446,
    distance=Quantiles((
        1, 1, 3, 6, 11, 24, 40, 59, 83, 113, 141, 178, 218, 263, 315, 380, 453, 531, 646, 772, 944, 1155, 1562,
        1999, 2318, 2593, 2925, 3044,
    )),
    least_blocks=26,
    first=Quantiles((
        13, 13, 16, 17, 20, 24, 28, 33, 42, 58, 86, 142, 302, 573, 1139, 3953, 13392, 15089, 16523, 18247, 21448,
        26914, 37122, 48567, 55173, 62057, 127085, 191374,
    )),
    new=Quantiles((
        1, 1, 1, 1, 1, 1, 56, 110, 156, 195, 228, 271, 301, 336, 385, 410, 443, 476, 508, 540, 655, 894, 1206, 1483,
        1895, 2166, 3795, 59649,
    )),
    first_output=Quantiles((
        1, 2, 2, 2, 4, 8, 18, 33, 63, 101, 131, 165, 192, 215, 238, 259, 283, 307, 331, 360, 403, 478, 615, 766,
        778, 791, 825, 842,
    )),
    later_output=Quantiles((
        2, 2, 2, 2, 2, 2, 3, 4, 6, 7, 8, 10, 12, 16, 19, 24, 32, 42, 55, 68, 82, 105, 162, 404, 525, 584, 768, 893,
    )),
    source="Mooncake's synthetic trace, 2025",
)  # fmt: skip
