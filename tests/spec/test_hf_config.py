"""What a config.json says becomes the spec, field by field; what it does not say is the family's documented default."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kvwise.errors import SpecError, UnknownArchitecture
from kvwise.models import build_program
from kvwise.spec.hf_config import spec_from_config
from kvwise.spec.model import Activation, ModelSpec, RopeScalingKind

GOLDENS = sorted((Path(__file__).parents[1] / "goldens" / "hf").glob("*/config.json"))

SIZES = {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 96, "num_attention_heads": 4}


def config(model_type: str, **fields: object) -> dict[str, object]:
    return {"model_type": model_type, **SIZES, **fields}


def spec(model_type: str, **fields: object) -> ModelSpec:
    return spec_from_config(config(model_type, **fields))


def windows(s: ModelSpec) -> list[int | None]:
    return [layer.attention.window for layer in s.layers]


@pytest.mark.parametrize("path", GOLDENS, ids=lambda p: p.parent.name)
def test_every_golden_config_parses_and_builds(path: Path) -> None:
    s = spec_from_config(json.loads(path.read_text()))
    assert build_program(s).num_parameters > 0


@pytest.mark.parametrize(
    "path", [p for p in GOLDENS if p.with_name("config_resaved.json").exists()], ids=lambda p: p.parent.name
)
def test_a_config_saved_by_transformers_5_means_the_same_as_the_one_it_was_loaded_from(path: Path) -> None:
    first = spec_from_config(json.loads(path.read_text()))
    second = spec_from_config(json.loads(path.with_name("config_resaved.json").read_text()))
    assert (first.layers, first.norm, first.tied_embeddings, first.logit_softcap, first.source_dtype) == (
        second.layers, second.norm, second.tied_embeddings, second.logit_softcap, second.source_dtype,
    )  # fmt: skip


def test_there_are_goldens() -> None:
    assert len(GOLDENS) >= 10


# Attention


def test_head_dim_is_hidden_over_heads_unless_stated() -> None:
    assert spec("llama").layers[0].attention.head_dim == 16
    assert spec("llama", head_dim=32).layers[0].attention.head_dim == 32
    assert spec("qwen2", num_key_value_heads=2).layers[0].attention.head_dim == 16
    assert spec("qwen3", num_key_value_heads=2).layers[0].attention.head_dim == 128
    assert spec("gemma2").layers[0].attention.head_dim == 256


def test_hidden_that_heads_do_not_divide_needs_a_head_dim() -> None:
    with pytest.raises(SpecError, match="hidden_size"):
        spec("llama", num_attention_heads=3)
    assert spec("llama", num_attention_heads=3, head_dim=20).layers[0].attention.q_width == 60


@pytest.mark.parametrize(
    ("fields", "kv_heads"),
    [({}, 4), ({"num_key_value_heads": None}, 4), ({"num_key_value_heads": 2}, 2)],
)
def test_llama_kv_heads_default_to_query_heads(fields: dict[str, object], kv_heads: int) -> None:
    assert spec("llama", **fields).layers[0].attention.num_kv_heads == kv_heads


def test_null_kv_heads_mean_query_heads_where_the_class_default_is_another() -> None:
    assert spec("mistral", num_key_value_heads=None).layers[0].attention.num_kv_heads == 4
    assert spec("mistral", num_attention_heads=16).layers[0].attention.num_kv_heads == 8


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(SpecError, match="evenly"):
        spec("llama", num_key_value_heads=3)


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("llama", {}, (False, False, False)),
        ("llama", {"attention_bias": True}, (True, True, False)),
        ("llama", {"mlp_bias": True}, (False, False, True)),
        ("mistral", {"attention_bias": True, "num_key_value_heads": 2}, (False, False, False)),
        ("qwen2", {"num_key_value_heads": 2, "attention_bias": False}, (True, False, False)),
        ("qwen3", {"num_key_value_heads": 2}, (False, False, False)),
        ("qwen3", {"num_key_value_heads": 2, "attention_bias": True}, (True, True, False)),
        ("gemma2", {"attention_bias": True}, (True, True, False)),
    ],
)
def test_biases(model_type: str, fields: dict[str, object], expected: tuple[bool, bool, bool]) -> None:
    layer = spec(model_type, **fields).layers[0]
    assert (layer.attention.qkv_bias, layer.attention.o_bias, layer.mlp.bias) == expected


def test_qk_norms_are_a_fact_of_the_family() -> None:
    normed = {t: spec(t, num_key_value_heads=2).layers[0].attention.qk_norm
              for t in ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text")}  # fmt: skip
    assert [t for t, flag in normed.items() if flag] == ["qwen3", "gemma3_text"]


# Windows


def test_mistral_has_the_window_it_states_in_every_layer_and_none_where_it_states_none() -> None:
    assert windows(spec("mistral", num_key_value_heads=2, sliding_window=24)) == [24] * 4
    assert windows(spec("mistral", num_key_value_heads=2, sliding_window=None)) == [None] * 4
    assert windows(spec("mistral", num_key_value_heads=2)) == [None] * 4


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_qwen_windows_need_the_switch_and_begin_at_max_window_layers(model_type: str) -> None:
    fields = {"num_key_value_heads": 2, "sliding_window": 24, "max_window_layers": 1}
    assert windows(spec(model_type, **fields)) == [None] * 4
    assert windows(spec(model_type, **fields, use_sliding_window=True)) == [None, 24, 24, 24]
    assert windows(spec(model_type, num_key_value_heads=2, use_sliding_window=True)) == [None] * 4  # default: 28


def test_qwen_layer_types_without_the_switch_are_refused() -> None:
    with pytest.raises(SpecError, match="use_sliding_window"):
        spec("qwen2", num_key_value_heads=2, layer_types=["sliding_attention"] * 4)


def test_gemma2_alternates_beginning_with_a_window() -> None:
    assert windows(spec("gemma2")) == [4096, None, 4096, None]
    assert windows(spec("gemma2", sliding_window=24)) == [24, None, 24, None]


def test_gemma3_has_five_windowed_layers_for_each_full_one() -> None:
    s = spec("gemma3_text", num_hidden_layers=13, sliding_window=24)
    assert [w is None for w in windows(s)] == [(i + 1) % 6 == 0 for i in range(13)]
    assert windows(spec("gemma3_text", sliding_window=24, sliding_window_pattern=2)) == [24, None, 24, None]
    assert windows(spec("gemma3_text", sliding_window_pattern=1)) == [None] * 4


def test_layer_types_as_a_list_win_over_the_pattern() -> None:
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    assert windows(spec("gemma2", layer_types=kinds, sliding_window=24)) == [None, 24, 24, None]


def test_layer_types_as_counts_are_ordered_by_the_pattern() -> None:
    counts = {"sliding_attention": 2, "full_attention": 2}
    assert windows(spec("gemma2", layer_types=counts, sliding_window=24)) == [24, None, 24, None]
    assert windows(spec("qwen2", num_key_value_heads=2, layer_types={"full_attention": 4})) == [None] * 4


@pytest.mark.parametrize(
    ("model_type", "layer_types"),
    [
        ("gemma2", {"sliding_attention": 3, "full_attention": 1}),
        ("gemma2", {"full_attention": 4}),
        ("gemma2", {"chunked_attention": 4}),
        ("llama", {"sliding_attention": 4}),
        ("llama", ["sliding_attention"] * 4),
        ("llama", ["full_attention"] * 3),
        ("llama", "full_attention"),
        ("gemma2", ["full_attention", "chunked_attention", "full_attention", "full_attention"]),
        ("gemma2", ["full_attention", 3, None, []]),
    ],
)
def test_layer_types_that_can_not_be_are_refused_by_name(model_type: str, layer_types: object) -> None:
    with pytest.raises(SpecError, match="layer_types"):
        spec(model_type, layer_types=layer_types)


def test_a_null_window_where_layers_have_one_is_refused() -> None:
    with pytest.raises(SpecError, match="sliding_window"):
        spec("gemma2", sliding_window=None)


# Rotation


def test_theta_defaults_are_the_families() -> None:
    assert spec("llama").layers[0].attention.rope.theta == 10_000.0
    assert spec("qwen3", num_key_value_heads=2).layers[0].attention.rope.theta == 10_000.0
    gemma3 = spec("gemma3_text", num_hidden_layers=6)
    assert [layer.attention.rope.theta for layer in gemma3.layers] == [10_000.0] * 5 + [1_000_000.0]


def test_gemma3_scales_only_the_layers_that_see_everything() -> None:
    old = spec("gemma3_text", num_hidden_layers=6, rope_theta=5e5, rope_local_base_freq=5e3,
               rope_scaling={"rope_type": "linear", "factor": 8.0})  # fmt: skip
    new = spec("gemma3_text", num_hidden_layers=6, rope_parameters={
        "full_attention": {"rope_theta": 5e5, "rope_type": "linear", "factor": 8.0},
        "sliding_attention": {"rope_theta": 5e3, "rope_type": "default"},
    })  # fmt: skip
    assert old.layers == new.layers
    local, full = old.layers[0].attention.rope, old.layers[5].attention.rope
    assert (local.theta, local.scaling.kind) == (5e3, RopeScalingKind.NONE)
    assert (full.theta, full.scaling.kind, full.scaling.factor) == (5e5, RopeScalingKind.LINEAR, 8.0)


def test_gemma3_rope_parameters_must_be_by_layer_type() -> None:
    with pytest.raises(SpecError, match="rope_parameters"):
        spec("gemma3_text", rope_parameters={"rope_theta": 1e6, "rope_type": "default"})


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_linear_scaling_in_its_old_and_new_form(key: str) -> None:
    old = spec("llama", rope_theta=2e4, rope_scaling={key: "linear", "factor": 4.0})
    new = spec("llama", rope_parameters={"rope_theta": 2e4, key: "linear", "factor": 4.0})
    assert old.layers == new.layers
    assert old.layers[0].attention.rope.inv_freqs()[0] == 0.25


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip


def test_llama3_scaling() -> None:
    scaling = spec("llama", rope_scaling=LLAMA3).layers[0].attention.rope.scaling
    assert scaling.kind is RopeScalingKind.LLAMA3
    assert (scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor) == (8.0, 1.0, 4.0)
    assert scaling.original_max_positions == 8192


@pytest.mark.parametrize("missing", ["factor", "low_freq_factor", "high_freq_factor"])
def test_llama3_scaling_is_never_completed_by_a_guess(missing: str) -> None:
    with pytest.raises(SpecError, match=missing):
        spec("llama", rope_scaling={k: v for k, v in LLAMA3.items() if k != missing})


def test_llama3_bands_must_not_be_empty() -> None:
    with pytest.raises(SpecError, match="high_freq_factor"):
        spec("llama", rope_scaling={**LLAMA3, "high_freq_factor": 1.0})


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, 0.1 * math.log(4.0) + 1.0),
        ({"attention_factor": 1.25}, 1.25),
        ({"mscale": 1.0}, 0.1 * math.log(4.0) + 1.0),
        ({"mscale": 0.5, "mscale_all_dim": 1.0}, (0.05 * math.log(4.0) + 1.0) / (0.1 * math.log(4.0) + 1.0)),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"factor": 0.5}, 1.0),
    ],
)
def test_yarn_attention_factor(extra: dict[str, float], expected: float) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, **extra}
    scaling = spec("llama", rope_theta=500.0, rope_scaling=rope).layers[0].attention.rope.scaling
    assert scaling.attention_factor == pytest.approx(expected, rel=1e-12)
    assert (scaling.beta_fast, scaling.beta_slow, scaling.truncate) == (32.0, 1.0, True)


def test_yarn_factor_and_original_length_come_from_the_config_where_scaling_does_not_say() -> None:
    s = spec("llama", max_position_embeddings=4096,
             rope_scaling={"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1024})  # fmt: skip
    assert s.layers[0].attention.rope.scaling.factor == 4.0
    s = spec("llama", max_position_embeddings=4096, rope_scaling={"rope_type": "yarn", "factor": 2.0})
    assert s.layers[0].attention.rope.scaling.original_max_positions == 4096


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope", "nonsense", ""])
def test_unknown_rope_kinds_are_refused_with_the_known_ones(kind: str) -> None:
    with pytest.raises(SpecError, match="default, linear, llama3, yarn"):
        spec("llama", rope_scaling={"type": kind, "factor": 2.0})


@pytest.mark.parametrize("value", [0.5, 2.0])
def test_heads_that_rotate_in_part_are_refused(value: float) -> None:
    with pytest.raises(SpecError, match="partial_rotary_factor"):
        spec("llama", rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": value})


# Numbers of the Gemmas


def test_gemma_scales_and_caps() -> None:
    s = spec("gemma2")
    attention = s.layers[0].attention
    assert (attention.scale, attention.softcap, s.logit_softcap) == (256**-0.5, 50.0, 30.0)
    assert (s.embedding_scale, s.norm.weight_offset, s.post_norms, s.tied_embeddings) == (8.0, 1.0, True, True)
    assert s.layers[0].mlp.activation is Activation.GELU_TANH
    s = spec("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None, query_pre_attn_scalar=144)
    assert (s.layers[0].attention.scale, s.layers[0].attention.softcap, s.logit_softcap) == (144**-0.5, None, None)


def test_the_embedding_scale_is_not_rounded_to_bfloat16() -> None:
    s = spec("gemma3_text", hidden_size=2560, torch_dtype="bfloat16")
    assert s.embedding_scale == math.sqrt(2560)


def test_gemma3_has_no_attention_cap() -> None:
    assert spec("gemma3_text").layers[0].attention.softcap is None
    with pytest.raises(SpecError, match="attn_logit_softcapping"):
        spec("gemma3_text", attn_logit_softcapping=50.0)


@pytest.mark.parametrize("model_type", ["gemma2", "gemma3_text"])
def test_bidirectional_attention_is_refused(model_type: str) -> None:
    with pytest.raises(SpecError, match="use_bidirectional_attention"):
        spec(model_type, use_bidirectional_attention=True)


def test_llama_family_has_none_of_it() -> None:
    s = spec("llama", final_logit_softcapping=30.0)
    assert (s.embedding_scale, s.norm.weight_offset, s.post_norms, s.logit_softcap) == (1.0, 0.0, False, None)


def test_gemma3_multimodal_is_read_from_its_text_config() -> None:
    text = config("gemma3_text", sliding_window=24)
    whole = spec_from_config({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 9},
                              "torch_dtype": "float16"})  # fmt: skip
    assert whole.layers == spec_from_config(text).layers
    assert whole.source_dtype == "f16"
    with pytest.raises(SpecError, match="text_config"):
        spec_from_config({"model_type": "gemma3"})


# The rest


@pytest.mark.parametrize(
    ("name", "activation"),
    [("silu", Activation.SILU), ("swish", Activation.SILU), ("gelu_pytorch_tanh", Activation.GELU_TANH),
     ("gelu_new", Activation.GELU_TANH), ("gelu", Activation.GELU_ERF), ("relu", Activation.RELU)],
)  # fmt: skip
def test_activations(name: str, activation: Activation) -> None:
    assert spec("llama", hidden_act=name).layers[0].mlp.activation is activation
    assert spec("gemma2", hidden_activation=name, hidden_act="silu").layers[0].mlp.activation is activation


def test_unknown_activation_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"hidden_act is 'xielu'.*silu"):
        spec("llama", hidden_act="xielu")


def test_ties_and_dtypes() -> None:
    assert [spec(t, num_key_value_heads=2).tied_embeddings for t in ("llama", "qwen2", "gemma2")] == [
        False,
        False,
        True,
    ]
    assert spec("llama", tie_word_embeddings=True).tied_embeddings
    assert spec("llama").source_dtype == "bf16"
    assert spec("llama", torch_dtype="float32").source_dtype == "f32"
    assert spec("llama", dtype="torch.float16").source_dtype == "f16"
    with pytest.raises(SpecError, match="torch_dtype"):
        spec("llama", torch_dtype="float8_e4m3fn")


def test_notes_say_which_fields_were_assumed() -> None:
    (note,) = spec("llama").notes
    assert "transformers" in note
    assert "vocab_size" in note
    assert "rope_theta" in note
    assert "hidden_size" not in note


def test_quantized_configs_say_that_sizes_are_the_unquantized_ones() -> None:
    assert any("quantization_config" in n for n in spec("llama", quantization_config={"quant_method": "awq"}).notes)


def test_unknown_architectures_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownArchitecture, match=r"'mamba'.*gemma2.*gemma3.*llama.*mistral.*qwen2.*qwen3"):
        spec("mamba")


@pytest.mark.parametrize("field", ["model_type", "hidden_size", "num_hidden_layers", "intermediate_size"])
def test_what_makes_a_model_what_it_is_must_be_stated(field: str) -> None:
    with pytest.raises(SpecError, match=field):
        spec_from_config({k: v for k, v in config("llama").items() if k != field})


BAD_SIZES = [0, -1, 10**9, 10**400, 1.5, 4.0, True, "4", [4], {"a": 1}, math.nan, math.inf]


@pytest.mark.parametrize("value", BAD_SIZES, ids=str)
@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"])
def test_impossible_sizes_are_refused_by_name(field: str, value: object) -> None:
    words = {"num_attention_heads": "num_attention_heads|heads|hidden_size", "vocab_size": "vocab",
             "hidden_size": "hidden"}.get(field, field)  # fmt: skip
    with pytest.raises(SpecError, match=words) as caught:
        spec("llama", head_dim=None, **{field: value})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1e-5, "1e-5", True, 10**400], ids=str)
def test_impossible_norm_eps_is_refused(value: object) -> None:
    with pytest.raises(SpecError, match="rms_norm_eps"):
        spec("llama", rms_norm_eps=value)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0, -5.0, "1e4", True], ids=str)
def test_impossible_theta_is_refused(value: object) -> None:
    with pytest.raises(SpecError, match="rope_theta"):
        spec("llama", rope_theta=value)


@pytest.mark.parametrize("value", [[], "linear", 3, [{"rope_type": "linear"}]], ids=str)
def test_scaling_of_a_wrong_type_is_refused(value: object) -> None:
    with pytest.raises(SpecError, match="rope_scaling"):
        spec("llama", rope_scaling=value)


@pytest.mark.parametrize("value", [None, [], "llama", 3], ids=str)
def test_a_config_that_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(SpecError):
        spec_from_config(value)  # type: ignore[arg-type]


def test_a_factor_that_underflows_the_frequencies_is_refused() -> None:
    with pytest.raises(SpecError, match="frequencies"):
        spec("llama", rope_theta=1e300, rope_scaling={"type": "linear", "factor": 1e300})


# Against transformers itself

RECORDED = json.loads((Path(__file__).parents[1] / "goldens" / "hf_configs.json").read_text())["records"]


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda r: r["config"]["model_type"])
def test_random_configs_become_what_transformers_builds_of_them(recorded: dict[str, Any]) -> None:
    s = spec_from_config(recorded["config"])
    assert build_program(s).num_parameters == recorded["parameters"]
    assert (s.norm.eps, s.logit_softcap) == (recorded["norm_eps"], recorded["logit_softcap"])
    for layer, (window, scale, factor, frequencies) in zip(s.layers, recorded["layers"], strict=True):
        a = layer.attention
        assert (a.window, a.softcap) == (window, recorded["attention_softcap"])
        assert a.scale == pytest.approx(scale, rel=1e-12)
        assert a.rope is not None
        assert a.rope.scaling.attention_factor == pytest.approx(factor, rel=1e-12)
        # theirs are float32
        assert a.rope.inv_freqs() == pytest.approx(recorded["frequencies"][frequencies], rel=2e-6)


def test_the_sparse_config_of_gemma_3_4b_on_the_hub_is_completed_by_the_class_defaults() -> None:
    s = spec_from_config({
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "mm_tokens_per_image": 256,
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        },
        "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    })  # fmt: skip
    assert build_program(s).num_parameters == 3_880_263_168
    assert [w for w in windows(s) if w is None] == [None] * 5
    assert (s.vocab, s.max_positions, s.layers[5].attention.rope.theta) == (262_208, 131_072, 1e6)
