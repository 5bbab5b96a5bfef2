"""Every published model of a built family, exactly, from its config alone; every other one refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvwise.errors import UnknownArchitecture
from kvwise.planner.memory import plan
from kvwise.spec.hf_config import KNOWN_MODEL_TYPES

MODELS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "models.json").read_text())["models"]
BUILT = [m for m in MODELS if m["config"]["model_type"] in KNOWN_MODEL_TYPES]
OTHERS = [m for m in MODELS if m["config"]["model_type"] not in KNOWN_MODEL_TYPES]


def test_the_catalogue_is_whole() -> None:
    assert len(MODELS) == 48
    assert len(BUILT) == 23
    assert {m["config"]["model_type"] for m in BUILT} == {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"}


@pytest.mark.parametrize("model", BUILT, ids=lambda m: m["id"])
def test_parameters_and_kv_bytes_are_exact(model: dict[str, Any]) -> None:
    figures = plan(model["config"]).to_json()
    for name in ("parameters", "kv_bytes_per_token", "kv_bytes_per_token_growing"):
        assert figures[name] == model[name], name


@pytest.mark.parametrize("model", BUILT, ids=lambda m: m["id"])
def test_a_config_file_gives_what_the_parsed_config_gives(model: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(model["config"]))
    from_file, parsed = plan(path), plan(model["config"])
    for name in ("parameters", "weight_bytes", "kv_bytes_per_token", "kv_bytes", "arena_bytes", "logits_bytes"):
        assert getattr(from_file, name) == getattr(parsed, name)
    assert plan(tmp_path).weight_bytes == parsed.weight_bytes  # a folder with nothing but a config


@pytest.mark.parametrize("model", OTHERS, ids=lambda m: m["id"])
def test_models_of_no_built_family_are_refused_by_name_with_the_known_ones(model: dict[str, Any]) -> None:
    with pytest.raises(UnknownArchitecture) as caught:
        plan(model["config"])
    assert repr(model["config"]["model_type"]) in str(caught.value)
    assert all(name in str(caught.value) for name in KNOWN_MODEL_TYPES)


@pytest.mark.parametrize("model", BUILT, ids=lambda m: m["id"])
def test_16_bit_weights_are_two_bytes_a_parameter(model: dict[str, Any]) -> None:
    p = plan(model["config"])
    assert p.weight_bytes == 2 * model["parameters"] == p.weight_bytes_at["bf16"]
