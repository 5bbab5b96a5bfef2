"""Requests that go on from earlier ones: shared as far as they say, in the sum like the trace."""

from __future__ import annotations

import statistics

import pytest

from kvwise.planner.simulation.load import CONTENT_TOKENS, RequestSize, closed_load
from kvwise.planner.simulation.sessions import MOONCAKE
from kvwise.planner.simulation.simulate import EngineSetup, simulate
from kvwise.spec.shape import StepLimits
from planner.simulation.loads import EveryStepPriced

DRAWN = MOONCAKE.sample(4000, seed=3)


def shared_blocks(sizes: tuple[RequestSize, ...]) -> list[int]:
    """Of each request, how many of its first blocks an earlier one had."""
    seen: set[int] = set()
    counts = []
    for size in sizes:
        counts.append(next((i for i, block in enumerate(size.content) if block not in seen), len(size.content)))
        seen.update(size.content)
    return counts


def test_prompts_are_as_long_as_their_blocks_say() -> None:
    for size in DRAWN:
        assert CONTENT_TOKENS * (len(size.content) - 1) < size.prompt_tokens <= CONTENT_TOKENS * len(size.content)


def test_what_follows_a_shared_block_is_shared_only_from_the_beginning_on() -> None:
    parent: dict[int, int | None] = {}
    for size in DRAWN:
        for before, block in zip((None, *size.content), size.content, strict=False):
            assert parent.setdefault(block, before) == before


def test_sums_are_the_traces() -> None:
    """Its mean prompt has 15,325 tokens, its output 149; 64 % of blocks were seen before, by 45 % of requests."""
    assert statistics.fmean(size.prompt_tokens for size in DRAWN) == pytest.approx(15_325, rel=0.15)
    assert statistics.fmean(size.output_tokens for size in DRAWN) == pytest.approx(149, rel=0.1)
    shared = shared_blocks(DRAWN)
    assert sum(shared) / sum(len(size.content) for size in DRAWN) == pytest.approx(0.64, abs=0.05)
    assert sum(count > 0 for count in shared) / len(DRAWN) == pytest.approx(0.43, abs=0.05)


def test_the_same_seed_draws_the_same() -> None:
    assert MOONCAKE.sample(50, seed=3) == DRAWN[:50]
    assert MOONCAKE.sample(50, seed=4) != DRAWN[:50]


def test_a_cache_that_holds_everything_finds_all_that_is_shared() -> None:
    sizes = MOONCAKE.sample(60, seed=5)
    blocks = sum(len(size.content) * CONTENT_TOKENS // 16 + 60 for size in sizes)
    setup = EngineSetup(blocks, StepLimits(300_000, 1, 1, 300_000))
    record = simulate(closed_load(sizes, 1), setup, EveryStepPriced())
    found = [served.num_cached_tokens for served in sorted(record.requests)]
    for size, count, shared in zip(sizes, found, shared_blocks(sizes), strict=True):
        assert count == min(shared * CONTENT_TOKENS, (size.prompt_tokens - 1) // 16 * 16)
    assert sum(found) > 0
