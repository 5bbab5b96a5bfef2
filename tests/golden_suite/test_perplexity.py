"""Perplexity of a text on the bundled file, held to llama.cpp's: 3 windows of 512 tokens, K and V in float16."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kvwise import LLM
from kvwise.checkpoint.bundled import FILE_SHA256
from kvwise.engine.scores import TextScore

GOLDENS = Path(__file__).parents[1] / "goldens" / "llamacpp"
TEXT = Path(__file__).parents[2] / "benchmarks" / "quality" / "alice.txt"


@pytest.fixture(scope="module")
def llm(bundled_model: Path) -> Iterator[LLM]:
    with LLM(bundled_model, max_context=512, max_requests=1, max_logits_rows=128, kv_dtype="f16", threads=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def recorded() -> dict[str, NDArray[np.float64]]:
    with np.load(GOLDENS / "perplexity.npz") as arrays:
        return {name: arrays[name].astype(np.float64) for name in arrays.files}


@pytest.fixture(scope="module")
def scores(llm: LLM, recorded: dict[str, NDArray[np.float64]]) -> list[TextScore]:
    return llm.score(list(recorded["ids"].astype(np.int32)))


def test_the_golden_is_of_this_text_and_this_file() -> None:
    facts = json.loads((GOLDENS / "perplexity.json").read_text())
    assert facts["text_sha256"] == sha256(TEXT.read_bytes()).hexdigest()
    assert facts["model_sha256"] == FILE_SHA256


def test_perplexity_is_llamacpps_within_half_a_percent(
    scores: list[TextScore], recorded: dict[str, NDArray[np.float64]]
) -> None:
    ours = np.exp(-np.mean([score.logprobs for score in scores]))
    theirs = np.exp(-np.mean(recorded["logprobs"]))
    assert ours == pytest.approx(theirs, rel=0.005)


def test_each_token_is_about_as_probable_as_to_llamacpp(
    scores: list[TextScore], recorded: dict[str, NDArray[np.float64]]
) -> None:
    """Both round activations to 8 bits, so single tokens differ; a wrong position or a lost token differs far more."""
    differences = np.concatenate([score.logprobs for score in scores]) - recorded["logprobs"].ravel()
    assert np.median(np.abs(differences)) < 0.06
    assert np.abs(differences).max() < 1.5


def test_the_text_is_cut_into_the_same_tokens(llm: LLM, recorded: dict[str, NDArray[np.float64]]) -> None:
    (score,) = llm.score(TEXT.read_text("utf-8")[:1600])
    assert list(score.token_ids[:300]) == recorded["ids"].astype(int).ravel()[:300].tolist()
