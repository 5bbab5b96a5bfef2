"""SmolLM2 against llama.cpp at temperature 0: 10 prompts × 64 tokens, llama.cpp's own tokens forced.

Both compute with rounded activations, so neither is the truth: the float64 reference, with exact activations and K
and V in float32, is. An error is a difference from it, at 512 ids of each step: llama.cpp's 256 likeliest and 256
spread over the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from golden_suite.forced import ForcedModel, forced_model
from kvwise.backends.reference.backend import TRUTH
from kvwise.checkpoint import open_checkpoint
from kvwise.tokenizer import load_chat_template, load_tokenizer

FOLDER = Path(__file__).parents[1] / "goldens" / "llamacpp"
PROMPTS = tuple(json.loads((FOLDER / "smollm2_texts.json").read_text()))
MAX_TOKENS = 60 + 64
Array = NDArray[np.float64]


class Steps:
    """One prompt's 64 steps: llama.cpp's tokens and logits beside the truth's and ours, at the same ids."""

    def __init__(self, name: str, truth: ForcedModel, native: ForcedModel) -> None:
        with np.load(FOLDER / "smollm2.npz") as arrays:
            prompt_ids, self.tokens = arrays[f"{name}/prompt_ids"], arrays[f"{name}/greedy_ids"]
            top_ids, stride_ids = arrays[f"{name}/top_ids"], arrays["stride_ids"]
            theirs = arrays[f"{name}/logits"].astype(np.float64)
        ids = np.concatenate([prompt_ids, self.tokens[:-1]])
        self.truth = truth.logits(ids, len(prompt_ids) - 1).astype(np.float64)
        ours = native.logits(ids, len(prompt_ids) - 1).astype(np.float64)
        self.our_tokens = ours.argmax(axis=1)
        kept = np.concatenate([top_ids, np.broadcast_to(stride_ids, (len(top_ids), len(stride_ids)))], axis=1)
        true_kept = np.take_along_axis(self.truth, kept, axis=1)
        self.their_errors: Array = np.abs(theirs - true_kept)
        self.our_errors: Array = np.abs(np.take_along_axis(ours, kept, axis=1) - true_kept)


@pytest.fixture(scope="module")
def steps_of(bundled_model: Path) -> Iterator[dict[str, Steps]]:
    with (
        forced_model(bundled_model, TRUTH, max_tokens=MAX_TOKENS) as truth,
        forced_model(bundled_model, "native", kv_dtype="f16", max_tokens=MAX_TOKENS, threads=2) as native,
    ):
        yield {name: Steps(name, truth, native) for name in PROMPTS}


def test_the_recording_is_ten_prompts_of_64_tokens(steps_of: dict[str, Steps]) -> None:
    assert len(steps_of) == 10
    assert {s.tokens.shape for s in steps_of.values()} == {(64,)}


@pytest.mark.parametrize("name", PROMPTS)
def test_another_token_is_chosen_only_where_the_truth_is_closer_than_llamacpps_error(
    name: str, steps_of: dict[str, Steps]
) -> None:
    s = steps_of[name]
    differs = np.flatnonzero(s.our_tokens != s.tokens)
    gaps = np.abs(s.truth[differs, s.our_tokens[differs]] - s.truth[differs, s.tokens[differs]])
    assert np.all(gaps < 2 * s.their_errors[differs].max(axis=1))


def test_most_tokens_are_the_same(steps_of: dict[str, Steps]) -> None:
    """A broken model fails here even if it is broken alike everywhere."""
    same = np.mean([np.mean(s.our_tokens == s.tokens) for s in steps_of.values()])
    assert same > 0.9


def test_our_error_is_no_larger_than_llamacpps(steps_of: dict[str, Steps]) -> None:
    ours = np.concatenate([s.our_errors for s in steps_of.values()])
    theirs = np.concatenate([s.their_errors for s in steps_of.values()])
    our_rms, their_rms = (float(np.sqrt(np.mean(errors**2))) for errors in (ours, theirs))
    our_worst, their_worst = (float(errors.max(axis=1).mean()) for errors in (ours, theirs))
    assert our_rms <= their_rms
    assert our_worst <= their_worst, "the largest error of a step, on average over steps"


def test_chats_are_rendered_and_tokenized_alike(bundled_model: Path) -> None:
    recorded = json.loads((FOLDER / "chats.json").read_text())["conversations"]
    with open_checkpoint(bundled_model) as checkpoint:
        tokenizer = load_tokenizer(checkpoint.metadata, None)
        template = load_chat_template(checkpoint.metadata, None, tokenizer)
    assert template is not None
    for chat in recorded:
        text = template.render(chat["messages"], add_generation_prompt=True)
        assert text == chat["text"]
        assert tokenizer.encode(text, add_special=True, parse_special=True) == chat["ids"]
