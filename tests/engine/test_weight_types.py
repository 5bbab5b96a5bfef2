"""Weights converted while they are loaded: what is and what is not, counted exactly, and refused in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvwise import LLM
from kvwise.engine.model import Settings, open_model
from kvwise.engine.weight_types import held_types
from kvwise.errors import UsageError
from kvwise.models import build_program
from kvwise.program.ir import Role
from kvwise.spec.dtypes import TENSOR_TYPES
from program.families import SPECS

GOLDENS = Path(__file__).parents[1] / "goldens"
HALVES = GOLDENS / "hf" / "llama_f16"
QUANTIZED = GOLDENS / "mixed_quants" / "mixed_quants.gguf"


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_1", "i8"])
def test_what_a_matmul_reads_is_converted_and_counted_to_the_byte(kind: str) -> None:
    with open_model(HALVES, weights=kind) as opened:
        plan = opened.plan(Settings(max_context=64))
        with opened.load(Settings(max_context=64)) as loaded:
            held = sum(buffer.nbytes for buffer in loaded.loaded.buffers() if buffer.row == "weights")
        assert plan.needs.weights_bytes == held
        for name, weight in opened.program.weights.items():
            stays = weight.role is not Role.MATRIX
            assert opened.types[name].name == ("f16" if stays else kind), name
        assert opened.stream_kinds[:2] == [f"{kind}*q8", f"{kind}*q8x2"]


def test_a_tied_embedding_is_converted_and_one_of_its_own_is_not() -> None:
    for family, tied in (("llama", False), ("gemma2", True)):
        program = build_program(SPECS[family])
        stored = dict.fromkeys(program.weights, TENSOR_TYPES["bf16"])
        assert ("lm_head.weight" in program.weights) is not tied
        assert (held_types(program, stored, "q8_0")["embed.weight"].name == "q8_0") is tied


def test_both_backends_compute_with_the_same_converted_weights() -> None:
    kind = "q4_0"
    text = np.random.default_rng(0).integers(3, 259, 60).tolist()
    scores = {}
    for backend, weights in (("native", kind), ("reference", kind), ("reference", None)):
        with LLM(HALVES, weights=weights, backend=backend, threads=2, max_context=64) as llm:
            scores[backend, weights] = np.array(llm.score([text])[0].logprobs)
    truth = scores["reference", kind]
    rounding = np.abs(truth - scores["reference", None]).mean()
    assert np.abs(truth - scores["native", kind]).mean() < 0.5 * rounding  # native rounds activations, too


def test_what_is_stored_so_already_stays_as_it_is() -> None:
    program = build_program(SPECS["llama"])
    stored = dict.fromkeys(program.weights, TENSOR_TYPES["q8_0"])
    assert held_types(program, stored, "q8_0") == stored


def test_rows_that_are_no_whole_blocks_stay_as_they_are() -> None:
    program = build_program(SPECS["llama"])
    stored = dict.fromkeys(program.weights, TENSOR_TYPES["f32"])
    held = held_types(program, stored, "q8_0")
    odd = {name for name, w in program.weights.items() if w.shape[-1] % 32}
    assert all(held[name].name == "f32" for name in odd)


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        (HALVES, "q5_0", "can't be converted to 'q5_0'.*one of q8_0, q4_0"),
        (HALVES, "f32", "can't be converted to 'f32'"),
        (HALVES, "", "can't be converted to"),
        (QUANTIZED, "q8_0", "is stored as q.*, which can't be converted to q8_0.*take a file that is not quantized"),
    ],
)
def test_what_can_not_be_converted_is_refused_before_anything_is_read(model: Path, kind: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_model(model, weights=kind)
