"""The sampler's filters against a plain reading of their definitions, and its randomness against its contract."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwise.engine.sampler import sample, uniform
from kvwise.errors import BackendError
from kvwise.spec.request import SamplingParams

LOGITS = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=40).map(lambda v: np.array(v, np.float32))


def allowed_ids(logits: np.ndarray, p: SamplingParams) -> set[int]:
    """top_k, then top_p, then min_p, each by its definition over a full sort."""
    probs = np.exp(logits.astype(np.float64) / p.temperature)
    ranked = sorted(range(len(logits)), key=lambda i: (-probs[i], i))
    if p.top_k:
        ranked = ranked[: p.top_k]
    total, kept, mass = sum(probs[i] for i in ranked), [], 0.0
    for i in ranked:
        if mass >= p.top_p and p.top_p < 1:
            break
        kept.append(i)
        mass += probs[i] / total
    return {i for i in kept if probs[i] >= p.min_p * probs[kept[0]] * (1 - 1e-12)}


TIES = st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=1, max_size=12).map(lambda v: np.array(v, np.float32))


@settings(max_examples=200)
@given(LOGITS | TIES, st.integers(0, 10), st.floats(0.05, 1.0), st.floats(0, 0.9), st.integers(0, 2**64 - 1))
def test_only_ids_that_survive_every_filter_are_drawn(
    logits: np.ndarray, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    params = SamplingParams(temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p)
    allowed = allowed_ids(
        logits, SamplingParams(temperature=0.8, top_k=top_k, top_p=min(1.0, top_p + 1e-9), min_p=min_p)
    )
    assert all(sample(logits, params, seed, i) in allowed for i in range(5))


def test_draws_follow_the_softmax() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    draws = Counter(sample(logits, SamplingParams(temperature=1.0), 7, i) for i in range(20_000))
    for token, probability in enumerate([0.5, 0.3, 0.15, 0.05]):
        sigma = (probability * (1 - probability) / 20_000) ** 0.5
        assert abs(draws[token] / 20_000 - probability) < 5 * sigma


@given(LOGITS)
def test_greedy_is_the_first_maximum(logits: np.ndarray) -> None:
    assert sample(logits, SamplingParams(), 0, 0) == int(np.argmax(logits))


@given(LOGITS.filter(lambda v: len(v) > 1))
def test_banned_ids_are_never_chosen(logits: np.ndarray) -> None:
    best = int(np.argmax(logits))
    assert sample(logits, SamplingParams(), 0, 0, banned_ids={best}) != best


def test_same_seed_and_index_give_the_same_number_and_others_do_not() -> None:
    assert uniform(1, 5) == uniform(1, 5)
    assert len({uniform(seed, i) for seed in range(30) for i in range(30)}) == 900


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_numbers_are_an_error_not_a_token(bad: float) -> None:
    with pytest.raises(BackendError, match="not finite"):
        sample(np.array([0.0, bad, 1.0], np.float32), SamplingParams(), 0, 0)


@given(LOGITS, st.sampled_from([5e-324, 1e-320, 1e-300, 1e-40]))
def test_a_temperature_near_zero_is_greedy(logits: np.ndarray, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert logits[sample(logits, params, 1, 0)] == logits.max()
