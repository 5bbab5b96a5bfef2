"""How far a stretch of equal steps reaches: decodes of the same requests, block by block. Pure arithmetic.

A step of B decodes is followed by the same step, with every context one longer, until one of them has all its tokens,
a request comes that may be admitted, or the blocks run out.
"""

from __future__ import annotations

from collections.abc import Sequence


def stride_growth(computed: Sequence[int], block_tokens: int) -> list[int]:
    """Blocks that the k-th step of a stride takes, at place k mod block_tokens.

    computed: tokens of each request in the cache before it; a request takes a block where that is a multiple of
    block_tokens.
    """
    growth = [0] * block_tokens
    for num_tokens in computed:
        growth[-num_tokens % block_tokens] += 1
    return growth


def plan_stride(computed: Sequence[int], block_tokens: int, num_available: int, most: int) -> int:
    """The most steps, at most `most`, for which `num_available` blocks suffice."""
    growth = stride_growth(computed, block_tokens)
    rounds, left = divmod(num_available, len(computed))  # each request takes one block in block_tokens steps
    steps = rounds * block_tokens
    for taken in growth:
        left -= taken
        if left < 0 or steps >= most:
            break
        steps += 1
    return min(steps, most)
