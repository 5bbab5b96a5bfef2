"""Policies of giving out a pool: their sums, their bounds, and that the simulation is what the engine does."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwise.errors import UsageError
from kvwise.studies.pages import STUDY
from kvwise.studies.pages.by_engine import hold_by_engine
from kvwise.studies.pages.measurement import Sizes, measure
from kvwise.studies.pages.policies import (
    Use,
    by_maximum,
    by_oracle,
    by_power_of_two,
    hold_in_blocks,
    hold_in_one_piece,
)
from kvwise.studies.study import Ask, Results

POOL = 256
# More than fit at once, so that somebody waits.
LENGTHS = st.lists(st.tuples(st.integers(1, 48), st.integers(1, 16)), min_size=12, max_size=40).filter(
    lambda lengths: sum(prompt for prompt, _ in lengths) > 2 * POOL
)
TINY = Sizes(
    pool_tokens=2**16, longest=2**14, requests=60, engine_requests=60, block_sizes=(1, 16, 256), context=64, steps=10
)


def check_shares(use: Use) -> None:
    shares = astuple(use)[:5]
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= 0


@given(LENGTHS)
def test_shares_of_a_pool_given_out_in_one_piece_each_sum_to_one(lengths: list[tuple[int, int]]) -> None:
    for reserve in (by_maximum(64), by_power_of_two, by_oracle):
        check_shares(hold_in_one_piece(lengths, POOL, reserve))


@given(LENGTHS)
def test_an_oracle_wastes_nothing_inside_and_blocks_of_one_token_neither(lengths: list[tuple[int, int]]) -> None:
    assert hold_in_one_piece(lengths, POOL, by_oracle).internal == 0
    assert hold_in_blocks(lengths, POOL, 1).internal == 0


@settings(max_examples=20)
@given(LENGTHS, st.sampled_from([1, 4, 16]))
def test_the_simulation_of_blocks_is_what_the_engine_does(lengths: list[tuple[int, int]], block_tokens: int) -> None:
    simulated, real = hold_in_blocks(lengths, POOL, block_tokens), hold_by_engine(lengths, POOL, block_tokens)
    check_shares(simulated)
    assert astuple(simulated) == pytest.approx(astuple(real), abs=1e-12)


def test_requests_that_all_fit_at_once_are_refused() -> None:
    for hold in (hold_in_blocks, hold_by_engine):
        with pytest.raises(UsageError, match="somebody waits"):
            hold([(10, 5)] * 3, POOL, 16)


def test_room_for_the_longest_holds_as_many_as_divide_the_pool() -> None:
    use = hold_in_one_piece([(10, 5)] * 50, POOL, by_maximum(60))
    assert use.requests == POOL // 60
    assert use.external == 0  # holes are what is left at the end, and too small


def test_equal_requests_by_an_oracle_leave_no_hole_between() -> None:
    use = hold_in_one_piece([(29, 4)] * 80, POOL, by_oracle)
    assert use.requests == POOL // 32
    assert (use.external, use.unused) == (0, 0)
    assert use.stored == pytest.approx((29 + 30 + 31 + 32) / 4 / 32)


@pytest.fixture(scope="module")
def results() -> Results:
    return measure(Ask(threads=1), TINY)


def test_a_tiny_run_says_that_blocks_hold_more(results: Results) -> None:
    conclusion = STUDY.conclude(results)
    assert conclusion.finding.startswith("Blocks of 16 tokens hold")
    assert len(conclusion.rows) == 8
    assert all(row.predicted and row.measured for row in conclusion.rows)


def test_a_trace_is_thinned_evenly_and_the_fitted_lengths_stand_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = "".join(f"2023-11-16 18:15:46.6805900,{i % 900 + 2000},{i % 50 + 20}\n" for i in range(180))
    path.write_text("\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n" + rows, "utf-8")
    measured = measure(Ask(threads=1, trace=path), TINY)
    assert measured["requests"] == 60
    assert measured["mean_prompt_tokens"] == pytest.approx(2089.5, abs=2)  # of all 180, not of the first 60
    assert [row.source for row in STUDY.conclude(measured).rows][-1].startswith("simulation of lengths fitted")
