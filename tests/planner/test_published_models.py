"""Published models, exactly, from their configs alone, through the public planner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvwise
from kvwise.checkpoint.catalogue import catalogue
from kvwise.errors import SpecError, UnknownArchitecture
from kvwise.planner.memory import plan
from kvwise.spec.hf_config import KNOWN_MODEL_TYPES

CONFIGS = {m.id: dict(m.config) for m in catalogue()}
MODELS: list[dict[str, Any]] = [
    {**m, "config": CONFIGS[m["id"]]} for m in json.loads((Path(__file__).parent / "models.json").read_text())["models"]
]
BY_ID = {m["id"]: m for m in MODELS}
EXACT = (
    "parameters", "active_parameters", "embedding_parameters", "kv_bytes_per_token", "kv_bytes_per_token_growing",
    "state_bytes_per_request", "index_bytes_per_token",
)  # fmt: skip


def test_all_published_models_are_there() -> None:
    assert len(MODELS) == 48
    assert {m["config"]["model_type"] for m in MODELS} <= set(KNOWN_MODEL_TYPES)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m["id"])
def test_parameters_and_kv_bytes_are_exact(model: dict[str, Any]) -> None:
    figures = kvwise.plan(model["config"]).to_json()
    for name in EXACT:
        assert figures[name] == model[name], name


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m["id"])
def test_windows_and_chunks_hold_no_more_than_their_tokens(model: dict[str, Any]) -> None:
    """Beyond every bound, what is held grows by the growing layers alone."""
    p = plan(model["config"])
    context = 1 + max((layer.bound or 1) for layer in p.kv.layers)
    held = p.kv.kv_stored_bytes(context, evict_windows=True)
    assert held - context * p.kv_bytes_per_token_growing == model["bounded_bytes_per_request"]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m["id"])
def test_a_config_file_gives_what_the_parsed_config_gives(model: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(model["config"]))
    from_file, parsed = plan(path), plan(model["config"])
    for name in ("parameters", "weight_bytes", "kv_bytes_per_token", "kv_bytes", "arena_bytes", "logits_bytes"):
        assert getattr(from_file, name) == getattr(parsed, name)
    assert plan(tmp_path).weight_bytes == parsed.weight_bytes  # a folder with nothing but a config


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m["id"])
def test_weights_are_parameters_in_the_publishers_type(model: dict[str, Any]) -> None:
    p = plan(model["config"])
    dtype = model["config"].get("torch_dtype", model["config"].get("dtype", "bfloat16"))
    assert p.weight_bytes == model["parameters"] * (4 if dtype == "float32" else 2)
    assert p.weight_bytes_at["bf16"] == 2 * model["parameters"]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m["id"])
def test_the_total_is_the_sum_of_its_rows(model: dict[str, Any]) -> None:
    p = plan(model["config"], context=1000, batch=3)
    assert p.total_bytes == sum(int(row.predicted or 0) for row in p.rows)
    rows = {row.name: row.predicted for row in p.rows}
    assert rows.get("states", 0) == p.states_bytes == 3 * model["state_bytes_per_request"]
    assert p.kv_bytes + p.index_bytes <= int(rows["kv_pool"] or 0)


def test_models_of_no_known_type_are_refused_by_name_with_the_known_ones() -> None:
    with pytest.raises(UnknownArchitecture) as caught:
        plan({"model_type": "rwkv", "hidden_size": 64})
    assert "'rwkv'" in str(caught.value)
    assert all(name in str(caught.value) for name in KNOWN_MODEL_TYPES)


@pytest.mark.parametrize(
    ("id", "change", "reason"),
    [
        ("facebook/opt-13b", {"word_embed_proj_dim": 512}, "projected embeddings"),
        ("facebook/opt-13b", {"do_layer_norm_before": False}, "norms after a block"),
        ("tiiuae/falcon-7b", {"alibi": True}, "ALiBi"),
        ("microsoft/phi-2", {"qk_layernorm": True}, "layer norms of queries and keys"),
        ("MiniMaxAI/MiniMax-M2.5", {"use_qk_norm": False}, "always has these norms"),
        ("deepseek-ai/DeepSeek-V3", {"moe_layer_freq": 2}, "experts in every layer"),
        ("deepseek-ai/DeepSeek-V3", {"num_key_value_heads": 8}, "never shared"),
        ("openai-community/gpt2", {"add_cross_attention": True}, "only decoders"),
        ("XiaomiMiMo/MiMo-V2-Flash", {"n_shared_experts": 1}, "no shared expert"),
        ("google/gemma-4-26B-A4B", {"use_bidirectional_attention": "all"}, "causal"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"sliding_window": 512}, "windows are not known"),
    ],
)
def test_what_can_not_be_counted_exactly_is_refused_by_field_and_reason(
    id: str, change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SpecError, match=reason) as caught:
        plan({**BY_ID[id]["config"], **change})
    assert next(iter(change)) in str(caught.value)


def test_gemma_4_with_experts_says_what_it_took_for_granted() -> None:
    config = BY_ID["google/gemma-4-26B-A4B"]["config"]
    assert any("hidden_size_per_layer_input" in note for note in plan(config).notes)
    stated = plan({**config, "hidden_size_per_layer_input": 0})
    assert not any("hidden_size_per_layer_input" in note for note in stated.notes)
    assert stated.parameters == plan(config).parameters
