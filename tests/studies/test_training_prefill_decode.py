"""The study of one layer in three phases: what each keeps, and how its costs stand to each other."""

from __future__ import annotations

import json

import pytest

from kvwise.studies.study import Ask, Results
from kvwise.studies.training_prefill_decode import STUDY, measurement
from kvwise.studies.training_prefill_decode.conclusion import intensity, kept_bytes
from kvwise.studies.training_prefill_decode.measurement import Sizes, measure

TINY = Sizes(
    hidden=64, q_heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=32, tokens=32, repetitions=1
)  # fmt: skip


@pytest.fixture(scope="module")
def results() -> Results:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "_priced", lambda _served, _shape: 0.001)
        patch.setattr(measurement, "_roof", lambda _served, _bytes: {"bytes_per_s": 1e10, "flops_per_s": 1e11})
        loaded: Results = json.loads(json.dumps(measure(Ask(threads=1), TINY), allow_nan=False))
    return loaded


def test_what_training_keeps_is_what_the_allocator_gave(results: Results) -> None:
    for part in results["phases"][0]["kept"]:
        assert part["measured_bytes"] == pytest.approx(part["predicted_bytes"], rel=0.02, abs=8000), part["part"]


def test_serving_keeps_weights_and_kv_only(results: Results) -> None:
    _, prefill, decode = results["phases"]
    assert [part["part"] for part in prefill["kept"]] == [part["part"] for part in decode["kept"]] == ["weights", "kv"]
    assert kept_bytes(prefill) == 4 * results["parameters"] + 32 * 2 * 2 * 16 * 2  # tokens, K and V, heads, width, f16


def test_decode_does_least_for_each_byte_and_computes_one_position(results: Results) -> None:
    training, prefill, decode = results["phases"]
    assert intensity(decode) < intensity(training) < intensity(prefill)
    assert (training["positions"], prefill["positions"], decode["positions"]) == (32, 32, 1)
    assert training["flops"] == 3 * prefill["flops"]


def test_the_conclusion_says_which_latency_each_rules(results: Results) -> None:
    conclusion = STUDY.conclude(results)
    assert "rules TTFT" in conclusion.finding
    assert "rules TPOT" in conclusion.finding
    assert [row.unit for row in conclusion.rows] == ["B"] * 5 + ["s"] * 3
