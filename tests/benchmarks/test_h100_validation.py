"""Predictions against serving points measured on H100, where the file is at hand (KVWISE_MEASURED names it)."""

from __future__ import annotations

import csv
from pathlib import Path

import h100_validation as h100
import pytest

COLUMNS = ("backend", "model_path", "precision", "tp_size", "pp_size", "isl", "osl", "batch_size",
           "silicon_ttft_ms", "silicon_tpot_ms")  # fmt: skip
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def write(path: Path, *rows: tuple[object, ...]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return path


def test_rows_are_read_with_their_units(tmp_path: Path) -> None:
    path = write(
        tmp_path / "points.csv",
        ("vllm", LLAMA, "", 2, 1, 1024, 128, 8, 100.0, 5.0),
        ("vllm", LLAMA, "fp8", 2, 2, 1024, 128, 8, 100.0, 5.0),  # a pipeline: not compared
    )
    assert h100.read_points(path) == [h100.Point("vllm", LLAMA, "bf16", 2, 1024, 128, 8, 0.1, 0.005)]


def test_errors_are_relative_to_what_was_measured() -> None:
    point = h100.Point("vllm", LLAMA, "bf16", 1, 1024, 128, 8, 0.1, 0.010)
    checked = [h100.Checked(point, 0.2, predicted) for predicted in (0.008, 0.011, 0.013)]
    found = h100.summarize("three", checked)
    assert found.median_error == pytest.approx(0.2)
    assert found.mean_error == pytest.approx((0.2 + 0.1 + 0.3) / 3)
    assert found.bias == pytest.approx(0.1)
    assert found.ttft_median_error == pytest.approx(1.0)


def test_what_engines_keep_in_16_bits_is_kept() -> None:
    from kvwise.models import build_program
    from kvwise.spec.hf_config import spec_from_config

    program = build_program(spec_from_config(h100.CONFIGS["openai/gpt-oss-120b"]))
    types = h100.served_types(program, "fp4")
    assert types["layers.0.mlp.experts.up.weight"].name == "mxfp4"
    assert {types[n].name for n in ("embed.weight", "lm_head.weight", "layers.0.mlp.router.weight")} == {"bf16"}


@pytest.mark.parametrize("model", sorted(h100.CONFIGS))
def test_every_model_of_the_points_is_priced_on_eight_devices(model: str) -> None:
    point = h100.Point("vllm", model, "fp8", 8, 1024, 128, 16, 1.0, 1.0)
    (checked,) = h100.check([point])
    assert 1e-3 < checked.predicted_tpot_s < 0.1


def test_dense_models_are_predicted_as_promised() -> None:
    path = h100.measured_file()
    if path is None:
        pytest.skip(f"{h100.VARIABLE} names no file of measured points")
    found = {row.name: row for row in h100.summaries(h100.check(h100.read_points(path)))}
    one, several = found["dense, one device, not FP4"], found["dense, 2 to 8 devices"]
    assert one.median_error <= 0.10
    assert one.mean_error <= 0.18
    assert several.median_error <= 0.20
