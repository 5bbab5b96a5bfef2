"""Families that are counted only: what their configs say, against transformers and field by field."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwise.errors import SpecError
from kvwise.models import build_program
from kvwise.spec.hf_config import spec_from_config
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.layers import (
    DeltaNetSpec,
    LatentAttentionSpec,
    Mamba2Spec,
    MlpSpec,
    MoeSpec,
    QkNorm,
    VariedAttentionSpec,
)
from kvwise.spec.model import ModelSpec, Residual
from kvwise.spec.rope import RopeScalingKind

GOLDENS = json.loads((Path(__file__).parents[1] / "goldens" / "hf_counts.json").read_text())
RECORDS: list[dict[str, Any]] = GOLDENS["records"]
SIZES = {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 96, "num_attention_heads": 4}
LATENT = {**SIZES, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "kv_lora_rank": 32,
          "q_lora_rank": 24, "num_experts_per_tok": 2}  # fmt: skip


def spec(model_type: str, **fields: object) -> ModelSpec:
    sizes = LATENT if model_type in ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_k2") else SIZES
    return spec_from_config({"model_type": model_type, **sizes, **fields})


# Against transformers


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r["config"]["model_type"])
def test_random_configs_have_the_parameters_and_caches_that_transformers_builds(record: dict[str, Any]) -> None:
    s = spec_from_config(record["config"])
    program = build_program(s)
    assert program.num_parameters == record["parameters"]
    assert [[kv.elements_per_token, kv.window] for kv in program.kv_layers] == record["kv"]
    assert [[state.recurrent_elements, state.conv_elements] for state in program.states] == record["states"]
    scales = {round(m.scale, 12) for layer in s.layers if (m := layer.mixer) is not None and hasattr(m, "scale")}
    assert sorted(scales) == pytest.approx(record["scales"], rel=1e-9)


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r["config"]["model_type"])
def test_the_cache_of_the_spec_is_the_cache_of_the_program(record: dict[str, Any]) -> None:
    s = spec_from_config(record["config"])
    kv, program = KVCacheSpec.of(s), build_program(s)
    assert (kv.layers, kv.states) == (program.kv_layers, program.states)


def test_all_counted_families_are_recorded() -> None:
    assert GOLDENS["transformers"] == "5.24.0"
    assert len({r["config"]["model_type"] for r in RECORDS}) >= 23


# Field by field


def test_gpt2_and_opt_look_up_their_positions() -> None:
    gpt2 = spec_from_config({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128})
    assert (gpt2.learned_positions, gpt2.max_positions) == (128, 128)
    opt = spec("opt", ffn_dim=96, max_position_embeddings=128)
    assert (opt.learned_positions, opt.max_positions) == (130, 128)
    assert opt.layers[0].attention.rope is None


def test_halves_in_parallel() -> None:
    assert spec("gpt_neox").residual is Residual.PARALLEL
    assert spec("gpt_neox", use_parallel_residual=False).residual is Residual.SEQUENTIAL
    assert spec("phi").residual is Residual.PARALLEL_ONE_NORM
    assert spec("falcon").residual is Residual.PARALLEL_ONE_NORM
    assert spec("falcon", new_decoder_architecture=True).residual is Residual.PARALLEL
    assert spec("falcon", parallel_attn=False).residual is Residual.SEQUENTIAL


def test_part_of_a_head_rotates() -> None:
    def rotary_dims(model_type: str, **fields: object) -> set[int]:
        layers = spec(model_type, **fields).layers
        return {layer.attention.rope.rotary_dim for layer in layers if layer.attention.rope is not None}

    assert rotary_dims("gpt_neox") == {4}
    assert rotary_dims("phi") == {8}
    assert rotary_dims("phi", partial_rotary_factor=0.25) == {4}
    assert rotary_dims("phi3", num_key_value_heads=2) == {16}
    assert rotary_dims("phi3", partial_rotary_factor=0.75) == {12}
    assert rotary_dims("minimax_m2", num_key_value_heads=2) == {128}
    assert rotary_dims("minimax_m2", num_key_value_heads=2, rotary_dim=64) == {64}
    assert rotary_dims("mimo_v2_flash", num_key_value_heads=1) == {64}
    with pytest.raises(SpecError, match="partial_rotary_factor"):
        rotary_dims("phi", partial_rotary_factor=1.5)


def test_longrope_keeps_both_sets_of_factors() -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    s = spec("phi3", max_position_embeddings=1024, original_max_position_embeddings=256,
             rope_scaling={"type": "longrope", **factors})  # fmt: skip
    rope = s.layers[0].attention.rope
    assert rope is not None
    assert (rope.scaling.kind, rope.scaling.long_factors) == (RopeScalingKind.LONGROPE, (2.0,) * 8)
    assert rope.scaling.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(256)))
    with pytest.raises(SpecError, match="long_factor"):
        spec("phi3", rope_scaling={"type": "longrope", **factors, "long_factor": [1.0]})


def test_every_fourth_layer_of_smollm3_does_not_rotate() -> None:
    rotating = [layer.attention.rope is not None for layer in spec("smollm3", num_hidden_layers=8).layers]
    assert rotating == [True, True, True, False] * 2
    stated = spec("smollm3", no_rope_layers=[0, 1, 1, 0]).layers
    assert [layer.attention.rope is not None for layer in stated] == [False, True, True, False]


def test_norms_of_queries_and_keys() -> None:
    assert spec("olmo2").layers[0].attention.qk_norm is QkNorm.WIDTH
    assert spec("qwen3_moe").layers[0].attention.qk_norm is QkNorm.HEAD
    assert spec("glm4_moe", head_dim=16, num_key_value_heads=2).layers[0].attention.qk_norm is None
    llama4 = spec("llama4_text", num_key_value_heads=2).layers
    assert [layer.attention.qk_norm for layer in llama4] == [QkNorm.PLAIN] * 3 + [None]


def test_chunks_are_where_layers_rotate() -> None:
    layers = spec("llama4_text", num_key_value_heads=2, attention_chunk_size=32).layers
    attention = [layer.mixer for layer in layers]
    assert [a.chunk for a in attention if isinstance(a, VariedAttentionSpec)] == [32, 32, 32, None]
    unchunked = spec("llama4_text", num_key_value_heads=2, attention_chunk_size=None).layers
    assert all(layer.mixer.chunk is None for layer in unchunked if isinstance(layer.mixer, VariedAttentionSpec))


def test_mimo_reads_both_forms_of_its_facts() -> None:
    ours = spec("mimo_v2_flash", num_key_value_heads=1, sliding_window=128)
    theirs = spec(
        "mimo_v2_flash", num_key_value_heads=1, sliding_window_size=127, hybrid_layer_pattern=[0, 1, 1, 1],
        moe_layer_freq=[0, 1, 1, 1], swa_num_key_value_heads=2,
    )  # fmt: skip
    assert ours.layers == theirs.layers
    assert [kv.num_kv_heads for kv in KVCacheSpec.of(ours).layers] == [1, 2, 2, 2]
    assert [kv.window for kv in KVCacheSpec.of(ours).layers] == [None, 128, 128, 128]


def test_experts_come_after_the_dense_layers() -> None:
    def sparse(s: ModelSpec) -> list[bool]:
        return [isinstance(layer.mlp, MoeSpec) for layer in s.layers]

    assert sparse(spec("deepseek_v3")) == [False, False, False, True]
    assert sparse(spec("deepseek_v3", first_k_dense_replace=0)) == [True] * 4
    assert sparse(spec("deepseek_v32", mlp_layer_types=["sparse", "dense", "sparse", "dense"])) == [
        True, False, True, False,
    ]  # fmt: skip
    assert sparse(spec("qwen3_moe", decoder_sparse_step=2, mlp_only_layers=[1])) == [False, False, False, True]
    assert sparse(spec("llama4_text", num_key_value_heads=2, interleave_moe_layer_step=2)) == [
        False, True, False, True,
    ]  # fmt: skip


def test_shared_experts_are_one_block() -> None:
    moe = spec("deepseek_v2", n_shared_experts=2, moe_intermediate_size=32).layers[3].mlp
    assert isinstance(moe, MoeSpec)
    assert isinstance(moe.shared, MlpSpec)
    assert (moe.expert.intermediate, moe.shared.intermediate) == (32, 64)
    none = spec("deepseek_v2", n_shared_experts=0).layers[3].mlp
    assert isinstance(none, MoeSpec)
    assert none.shared is None


def test_latents_keep_one_head_and_no_values() -> None:
    kv = KVCacheSpec.of(spec("deepseek_v3"))
    assert {(k.num_kv_heads, k.k_dim, k.v_dim) for k in kv.layers} == {(1, 40, 0)}
    assert kv.index_bytes_per_token == 0
    assert KVCacheSpec.of(spec("deepseek_v32", index_head_dim=16)).index_bytes_per_token == 4 * (16 + 4)


def test_kimi_k2_is_deepseek_v3() -> None:
    assert spec("kimi_k2").layers == spec("deepseek_v3").layers
    assert spec("kimi_k2").family == "deepseek_v3"


def test_glm_layers_without_an_indexer_read_the_last_ones_choice() -> None:
    s = spec("glm_moe_dsa", indexer_types=["full", "shared", "full", "shared"])
    mixers = [layer.mixer for layer in s.layers]
    assert [m.indexer is not None for m in mixers if isinstance(m, LatentAttentionSpec)] == [True, False, True, False]
    assert spec("glm_moe_dsa", index_topk_pattern="FSFS").layers == s.layers
    assert [kv.index_bytes > 0 for kv in KVCacheSpec.of(s).layers] == [True, False, True, False]
    with pytest.raises(SpecError, match="full in the first layer"):
        spec("glm_moe_dsa", index_topk_pattern="SFFF")


def test_yarn_of_latents_scales_the_scores() -> None:
    rope = {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "mscale_all_dim": 1.0}
    mixer = spec("deepseek_v3", rope_scaling=rope).layers[0].mixer
    assert isinstance(mixer, LatentAttentionSpec)
    assert mixer.scale == pytest.approx(24**-0.5 * (0.1 * math.log(40) + 1) ** 2)


def test_three_of_four_layers_of_qwen3_next_keep_a_state() -> None:
    s = spec("qwen3_next", num_key_value_heads=2, num_hidden_layers=8)
    assert [isinstance(layer.mixer, DeltaNetSpec) for layer in s.layers] == [True, True, True, False] * 2
    kv = KVCacheSpec.of(s)
    assert (len(kv.layers), len(kv.states)) == (2, 6)
    assert kv.state_bytes_per_request == 6 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
    assert kv.request_bytes(10) - kv.request_bytes(9) == kv.bytes_per_token


def test_nemotron_layers_are_letters() -> None:
    fields = {"hidden_size": 64, "hybrid_override_pattern": "M*E-", "intermediate_size": 96, "head_dim": 16,
              "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    s = spec_from_config({"model_type": "nemotron_h", **fields})
    assert [type(layer.mixer or layer.mlp).__name__ for layer in s.layers] == [
        "Mamba2Spec", "AttentionSpec", "MoeSpec", "PlainMlpSpec",
    ]  # fmt: skip
    named = {**fields, "layers_block_type": ["mamba", "attention", "moe", "mlp"]}
    del named["hybrid_override_pattern"]
    assert spec_from_config({"model_type": "nemotron_h", **named}).layers == s.layers
    assert isinstance(s.layers[0].mixer, Mamba2Spec)
    for broken in ({"hybrid_override_pattern": "MX"}, {"hybrid_override_pattern": ""}, {"num_hidden_layers": 3}):
        with pytest.raises(SpecError):
            spec_from_config({"model_type": "nemotron_h", **fields, **broken})


def test_gemma_4_shares_k_and_v_of_the_last_layer_of_the_same_kind() -> None:
    s = spec("gemma4_text", num_hidden_layers=12, num_key_value_heads=2, head_dim=16, global_head_dim=32,
             num_kv_shared_layers=4, hidden_size_per_layer_input=0)  # fmt: skip
    owners = [layer.mixer.kv_layer for layer in s.layers if isinstance(layer.mixer, VariedAttentionSpec)]
    assert owners == [None] * 8 + [7, 7, 7, 5]
    assert len(KVCacheSpec.of(s).layers) == 8
    with pytest.raises(SpecError, match="num_kv_shared_layers"):
        spec("gemma4_text", num_hidden_layers=6, num_key_value_heads=2, num_kv_shared_layers=2)


def test_gemma_4_without_experts_has_the_classes_second_embedding() -> None:
    s = spec("gemma4_text", num_key_value_heads=2)
    assert s.per_layer_input is not None
    assert s.per_layer_input.width == 256


@pytest.mark.parametrize(
    ("model_type", "text_type"),
    [("llama4", "llama4_text"), ("gemma4", "gemma4_text"), ("qwen3_5_moe", "qwen3_5_moe_text"),
     ("qwen3_5", "qwen3_5_text")],
)  # fmt: skip
def test_multimodal_configs_are_read_from_their_text_config(model_type: str, text_type: str) -> None:
    text = {**SIZES, "num_key_value_heads": 2}
    nested = spec_from_config({"model_type": model_type, "text_config": text, "vision_config": {"hidden_size": 9}})
    assert nested.layers == spec_from_config({"model_type": text_type, **text}).layers


@pytest.mark.parametrize(
    ("model_type", "fields", "field"),
    [
        ("mixtral", {"num_key_value_heads": 4, "num_local_experts": 4, "num_experts_per_tok": 5}, "experts per token"),
        ("mixtral", {"num_local_experts": 0}, "num_local_experts"),
        ("qwen3_moe", {"mlp_only_layers": [4]}, "mlp_only_layers"),
        ("qwen3_moe", {"mlp_only_layers": "all"}, "mlp_only_layers"),
        ("llama4_text", {"no_rope_layers": [1, 2, 0, 1]}, "no_rope_layers"),
        ("llama4_text", {"moe_layers": [-1]}, "moe_layers"),
        ("deepseek_v3", {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ("deepseek_v3", {"mlp_bias": True}, "mlp_bias"),
        ("deepseek_v3", {"kv_lora_rank": -1}, "kv_lora_rank"),
        ("qwen3_next", {"linear_num_value_heads": 3, "linear_num_key_heads": 2}, "evenly"),
        ("qwen3_next", {"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim"),
        ("mimo_v2_flash", {"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern"),
        ("mimo_v2_flash", {"swa_head_dim": 64}, "swa_head_dim"),
        ("falcon", {"num_kv_heads": 2, "multi_query": False}, "num_kv_heads"),
        ("smollm3", {"no_rope_layers": "none"}, "no_rope_layers"),
        ("gpt_oss", {"layer_types": ["linear_attention"] * 4}, "layer_types"),
    ],
)
def test_impossible_facts_are_refused_by_name(model_type: str, fields: dict[str, object], field: str) -> None:
    with pytest.raises(SpecError, match=field):
        spec(model_type, **fields)


# Whatever a file says

ODD: list[object] = [
    None, -1, 0, 1, 3, 7, 2**24, 2**31, 2**70, 1.5, math.nan, math.inf, "", "x", "full_attention", True, False,
    [], [0], [1, 1], [None] * 3, [[1]], ["full_attention"] * 4, ["sparse"] * 3, "M*" * 9, "FS",
    {}, {"a": 1}, {"rope_type": "yarn"}, {"full_attention": {}}, {"sliding_attention": None}, {"full_attention": 3},
    {"05": {"head_dim": 3}}, {"05": None},
]  # fmt: skip
MORE_FIELDS = [
    "mlp_layer_types", "indexer_types", "index_topk_pattern", "no_rope_layers", "moe_layers", "mlp_only_layers",
    "hybrid_layer_pattern", "moe_layer_freq", "layer_types", "rope_parameters", "rope_scaling", "per_layer_config",
    "num_global_key_value_heads", "num_kv_shared_layers", "sliding_window_size", "rotary_dim", "moe_latent_size",
    "layers_block_type", "hybrid_override_pattern", "head_dim", "intermediate_size", "quantization_config",
]  # fmt: skip


@given(st.sampled_from(RECORDS), st.data())
@settings(max_examples=300, deadline=None)
def test_any_config_gives_a_program_or_names_what_is_wrong(record: dict[str, Any], data: st.DataObject) -> None:
    config = dict(record["config"])
    names = st.sampled_from([*(name for name in config if name != "model_type"), *MORE_FIELDS])
    for name in data.draw(st.lists(names, min_size=1, max_size=3)):
        config[name] = data.draw(st.sampled_from(ODD))
    try:
        s = spec_from_config(config)
    except SpecError:
        return
    assert KVCacheSpec.of(s).layers == build_program(s).kv_layers


def test_heads_too_wide_to_be_checked_are_refused_in_time() -> None:
    with pytest.raises(SpecError, match="rotary dimensions"):
        spec("smollm3", head_dim=2**20)


@pytest.mark.parametrize(
    ("nested", "text", "family"),
    [("qwen3_vl", "qwen3_vl_text", "qwen3"), ("qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_moe")],
)
def test_the_text_half_of_qwen3_vl_is_a_qwen3(nested: str, text: str, family: str) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100, "moe_intermediate_size": 32,
             "num_experts": 4, "num_experts_per_tok": 2, "rope_theta": 5_000_000,
             "rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2],
                              "mrope_interleaved": True}}  # fmt: skip
    half = spec_from_config({"model_type": nested, "text_config": {"model_type": text, **sizes}, "vision_config": {}})
    alone = spec_from_config({"model_type": family, **sizes, "rope_scaling": None})
    assert half.family == family
    assert build_program(half).num_parameters == build_program(alone).num_parameters
    assert [layer.mixer for layer in half.layers] == [layer.mixer for layer in alone.layers]


def test_mimo_has_biases_of_queries_keys_and_values_where_it_says_so() -> None:
    sizes = {"model_type": "mimo", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
             "num_nextn_predict_layers": 1}  # fmt: skip
    plain, biased = (spec_from_config({**sizes, "attention_bias": bias}) for bias in (False, True))
    assert (biased.layers[0].attention.qkv_bias, biased.layers[0].attention.o_bias) == (True, False)
    assert build_program(biased).num_parameters - build_program(plain).num_parameters == 2 * (64 + 2 * 32)


def test_glm_5_2_names_its_sparse_layers_as_deepseek_does() -> None:
    config = next(r["config"] for r in RECORDS if r["config"]["model_type"] == "glm_moe_dsa")
    layers = config["num_hidden_layers"]
    named = spec_from_config({**config, "layer_types": ["deepseek_sparse_attention"] * layers})
    assert named.layers == spec_from_config(config).layers
