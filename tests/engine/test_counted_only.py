"""Families that are counted and priced only are refused before a weight is read, by one check for all backends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvwise.backends.reference.ops import compute
from kvwise.backends.runnable import RUNNABLE_OPS, check_runs, runs
from kvwise.engine.model import open_model
from kvwise.errors import BackendError, UsageError
from kvwise.models import FAMILIES, build_program
from kvwise.program.ir import Op
from kvwise.spec.hf_config import spec_from_config

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 259}  # fmt: skip


def folder(path: Path, config: dict[str, Any]) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(b"no header, and never read")
    return path


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "mixtral", **SIZES, "num_local_experts": 4}, r"mixtral models .* no Route, Experts"),
        ({"model_type": "gpt_oss", **SIZES}, r"gpt_oss models .* no VariedAttention"),
        ({"model_type": "phi", **SIZES}, r"phi models .* no LayerNorm, Activate"),
        ({"model_type": "olmo2", **SIZES}, r"olmo2 models .* names of its tensors"),
    ],
    ids=["mixtral", "gpt_oss", "phi", "olmo2"],
)
def test_opening_refuses_with_the_family_and_what_is_missing(
    tmp_path: Path, config: dict[str, Any], named: str, backend: str
) -> None:
    with pytest.raises(BackendError, match=named) as caught:
        open_model(str(folder(tmp_path, config)), backend=backend)
    assert "counted and priced only" in str(caught.value)
    assert "kvwise plan" in str(caught.value)


def test_every_family_is_either_run_or_refused() -> None:
    small = {**SIZES, "head_dim": 16}
    for family in ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"):
        spec = spec_from_config({"model_type": family, **small})
        program = build_program(spec)
        assert runs(program)
        check_runs(program, spec.family, "native", has_names=True)
    assert set(FAMILIES) > {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"}


def test_the_check_knows_exactly_what_the_backends_compute() -> None:
    from kvwise.backends.native.program import _HANDOVERS

    assert set(_HANDOVERS) == RUNNABLE_OPS
    assert {kind for kind in compute.registry if issubclass(kind, Op) and kind is not Op} == RUNNABLE_OPS


@pytest.mark.parametrize("kv_dtype", ["q8_0", "int7"])
def test_a_kv_type_that_is_only_counted_or_unknown_is_refused(bundled_model: Path, kv_dtype: str) -> None:
    with pytest.raises(UsageError, match=rf"{kv_dtype}.*one of f32, f16, bf16, int8, int4$"):
        open_model(str(bundled_model), kv_dtype=kv_dtype)
