"""The study of memory: what it counts is the planner's, what it watches is the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwise.studies.study import Ask, Results
from kvwise.studies.what_fills_memory import STUDY, measurement
from kvwise.studies.what_fills_memory.conclusion import measured_crossing, predicted_crossing
from kvwise.studies.what_fills_memory.measurement import Sizes, measure
from kvwise.units import GiB

TINY = Sizes(pool_tokens=256, prompt_tokens=64, step_tokens=64)


@pytest.fixture(scope="module")
def results(bundled_model: Path) -> Results:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "_decode_seconds", lambda _ask, _spec, cells: dict.fromkeys(cells, 0.5))
        return measure(Ask(threads=1), TINY)


def test_counts_are_those_that_the_field_teaches(results: Results) -> None:
    counted = results["counted"]
    assert counted["parameters"] == 8_030_261_248
    cells = {(c["context"], c["batch"]): c["kv_bytes"] / GiB for c in counted["cells"]}
    assert (cells[2048, 1], cells[8192, 8], cells[32768, 32]) == (0.25, 8, 128)
    assert counted["kv_passes_weights_at_tokens"]["16 bits"] == 122_533


def test_the_pool_is_given_out_whole_and_there_as_far_as_it_was_written(results: Results) -> None:
    empty, *_, full = results["watched"]["samples"]
    written = full["tokens"] * results["watched"]["kv_bytes_per_token"]
    assert empty["allocated_bytes"]["kv_pool"] == full["allocated_bytes"]["kv_pool"] == written
    assert empty["resident_bytes"]["kv_pool"] < written / 10
    assert full["resident_bytes"]["kv_pool"] == pytest.approx(written, rel=0.01)


def test_the_crossing_is_read_off_between_two_samples() -> None:
    def sample(tokens: int, kv_bytes: int) -> dict[str, object]:
        return {"tokens": tokens, "resident_bytes": {"weights": 100, "kv_pool": kv_bytes}}

    watched = {
        "samples": [sample(0, 0), sample(10, 50), sample(20, 130)],
        "predicted": {"weights": 100},
        "kv_bytes_per_token": 6,
    }
    assert predicted_crossing(watched) == 17
    assert measured_crossing(watched) == 10 + 10 * 50 / 80


def test_a_run_whose_pool_is_too_small_to_cross_says_so(results: Results) -> None:
    conclusion = STUDY.conclude(results)
    assert conclusion.rows[0].measured is None
    assert "4,192 tokens" in conclusion.finding
    assert "measured" not in conclusion.finding
