"""The study of KV heads: models of one size, copies that change nothing, means that change everything."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvwise.models import build_program
from kvwise.studies.fewer_kv_heads import STUDY, measurement
from kvwise.studies.fewer_kv_heads.conclusion import seconds_per_token
from kvwise.studies.fewer_kv_heads.heads import averaged, copied
from kvwise.studies.fewer_kv_heads.measurement import Sizes, measure, spec_of
from kvwise.studies.study import Ask, Results

TINY = Sizes(
    hidden=64, layers=2, q_heads=4, kv_heads=(4, 2, 1), head_dim=16, intermediate=128, vocab=64, contexts=(32, 64),
    steps=2, rounds=1, text_tokens=24, logits_rows=16,
)  # fmt: skip


@pytest.fixture(scope="module")
def results(bundled_model: Path) -> Results:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "_predicted", lambda _served, sizes: [0.001] * len(sizes.contexts))
        measured = measure(Ask(threads=1), TINY)
    loaded: Results = json.loads(json.dumps(measured, allow_nan=False))
    return loaded


def test_the_three_models_have_one_size() -> None:
    sizes = Sizes()
    counts = [build_program(spec_of(sizes, heads)).num_parameters for heads in sizes.kv_heads]
    assert max(counts) / min(counts) < 1.005


def test_copies_change_no_bit_and_a_mean_changes_most_tokens(results: Results) -> None:
    variants = {row["name"]: row for row in results["changed"]["variants"]}
    copies, mean = variants["each copied 3 times"], variants["their mean"]
    assert (copies["divergence"], copies["top_1"], copies["kv_heads"]) == (0.0, 1.0, 9)
    assert copies["kv_bytes_per_token"] == 3 * variants["as trained"]["kv_bytes_per_token"]
    assert mean["divergence"] > 1
    assert mean["perplexity"] > 10 * variants["as trained"]["perplexity"]


def test_bytes_fall_with_the_heads(results: Results) -> None:
    assert [model["kv_bytes_per_token"] for model in results["timed"]] == [
        2 * 2 * 2 * 64,
        2 * 2 * 2 * 32,
        2 * 2 * 2 * 16,
    ]


def test_the_conclusion_names_each_model_and_the_price(results: Results) -> None:
    conclusion = STUDY.conclude(results)
    assert "MHA" in conclusion.finding
    assert "perplexity" in conclusion.finding
    assert len(conclusion.rows) == 6


def test_what_a_token_of_context_adds_is_a_slope() -> None:
    model = {"tpot": [{"context": 100, "measured_s": 0.5}, {"context": 300, "measured_s": 0.9}]}
    assert seconds_per_token(model) == pytest.approx(0.002)


def test_heads_are_changed_whole() -> None:
    heads = np.arange(3 * 2 * 4, dtype=np.float32).reshape(3, 2, 4)
    assert copied(2)(heads)[:, 0, 0].tolist() == [0, 0, 8, 8, 16, 16]
    assert averaged(heads).tolist() == [heads[1].tolist()]
