"""Distributions of token counts: what is fitted comes back, and what is drawn follows the fit."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.planner.simulation.lengths import AZURE_CODE, AZURE_CONVERSATIONS, SHARES, Quantiles, TokenLengths


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=200))
def test_every_quantile_of_a_fit_lies_within_what_was_fitted_and_grows(values: list[int]) -> None:
    fitted = Quantiles.of(values)
    drawn = [fitted.at(i / 50) for i in range(51)]
    assert drawn == sorted(drawn)
    assert (drawn[0], drawn[-1]) == (min(values), max(values))


# Means of the published traces: 19,366 conversations and 8,819 code completions.
@pytest.mark.parametrize(
    ("lengths", "prompt_mean", "output_mean"), [(AZURE_CONVERSATIONS, 1154.7, 211.1), (AZURE_CODE, 2047.8, 27.9)]
)
def test_the_fits_have_the_means_of_the_traces(lengths: TokenLengths, prompt_mean: float, output_mean: float) -> None:
    assert lengths.prompt.mean == pytest.approx(prompt_mean, rel=0.01)
    assert lengths.output.mean == pytest.approx(output_mean, rel=0.05)


def test_samples_have_the_mean_of_their_distribution_and_repeat() -> None:
    pairs = AZURE_CONVERSATIONS.sample(20_000, seed=1)
    assert statistics.fmean(prompt for prompt, _ in pairs) == pytest.approx(AZURE_CONVERSATIONS.prompt.mean, rel=0.03)
    assert statistics.fmean(output for _, output in pairs) == pytest.approx(AZURE_CONVERSATIONS.output.mean, rel=0.03)
    assert AZURE_CONVERSATIONS.sample(5, seed=1) == pairs[:5]
    assert AZURE_CONVERSATIONS.sample(5, seed=2) != pairs[:5]


def test_shares_cover_everything() -> None:
    assert (SHARES[0], SHARES[-1]) == (0.0, 1.0)
    assert list(SHARES) == sorted(set(SHARES))
