"""What GGUF metadata and the tensor list say becomes the spec; an absent key means what it means to llama.cpp."""

from __future__ import annotations

import math

import pytest

from kvwise.errors import SpecError, UnknownArchitecture
from kvwise.spec.gguf_config import spec_from_gguf
from kvwise.spec.hf_config import spec_from_config
from kvwise.spec.model import Activation, ModelSpec, RopeScalingKind

BASE = {
    "block_count": 4,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "context_length": 512,
    "vocab_size": 259,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def metadata(architecture: str, **fields: object) -> dict[str, object]:
    own = {**BASE, **{k.replace("__", "."): v for k, v in fields.items()}}
    return {"general.architecture": architecture, **{f"{architecture}.{k}": v for k, v in own.items() if v is not None}}


def spec(architecture: str, **fields: object) -> ModelSpec:
    return spec_from_gguf(metadata(architecture, **fields))


def windows(s: ModelSpec) -> list[int | None]:
    return [layer.attention.window for layer in s.layers]


@pytest.mark.parametrize(
    ("architecture", "config", "keys"),
    [
        ("llama", {"model_type": "llama", "rope_theta": 5e5}, {"rope__freq_base": 5e5}),
        ("llama", {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}},
         {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}),
        ("llama", {"model_type": "llama", "rope_theta": 500.0, "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 4.0}},
         {"rope__freq_base": 500.0, "rope__scaling__type": "yarn", "rope__scaling__factor": 4.0,
          "rope__scaling__original_context_length": 128, "rope__scaling__yarn_beta_fast": 4.0}),
        ("qwen2", {"model_type": "qwen2", "rope_theta": 1e6}, {"rope__freq_base": 1e6}),
        ("qwen3", {"model_type": "qwen3", "head_dim": 32},
         {"attention__key_length": 32, "attention__value_length": 32}),
        ("gemma2", {"model_type": "gemma2", "head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 32},
         {"attention__key_length": 32, "attention__sliding_window": 24}),
        ("gemma3", {"model_type": "gemma3_text", "head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 32,
                    "num_hidden_layers": 8, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
         {"attention__key_length": 32, "attention__sliding_window": 24, "block_count": 8, "rope__freq_base": 1e6,
          "rope__scaling__type": "linear", "rope__scaling__factor": 8.0}),
    ],
    ids=["llama", "linear", "yarn", "qwen2", "qwen3", "gemma2", "gemma3"],
)  # fmt: skip
def test_both_formats_describe_the_same_model(
    architecture: str, config: dict[str, object], keys: dict[str, object]
) -> None:
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 259,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
    }
    hf, gguf = spec_from_config({**sizes, **config}), spec(architecture, **keys)
    assert gguf.layers == hf.layers
    assert (gguf.hidden, gguf.vocab, gguf.max_positions, gguf.norm.eps, gguf.tied_embeddings, gguf.embedding_scale,
            gguf.post_norms, gguf.logit_softcap) == (
        hf.hidden, hf.vocab, hf.max_positions, hf.norm.eps, hf.tied_embeddings, hf.embedding_scale,
        hf.post_norms, hf.logit_softcap)  # fmt: skip


def test_gemma_norm_weights_have_1_added_in_gguf_and_not_in_hf() -> None:
    assert spec("gemma2").norm.weight_offset == 0.0


def test_the_token_list_is_the_vocabulary() -> None:
    s = spec_from_gguf({**metadata("llama"), "tokenizer.ggml.tokens": ["a"] * 300})
    assert s.vocab == 300
    with pytest.raises(SpecError, match="vocab_size"):
        spec("llama", vocab_size=None)


def test_ties_and_biases_come_from_the_tensor_list() -> None:
    plain = ("token_embd.weight", "output.weight")
    assert not spec_from_gguf(metadata("llama"), tensor_names=plain).tied_embeddings
    assert spec_from_gguf(metadata("llama"), tensor_names=plain[:1]).tied_embeddings
    names = (*plain, "blk.1.attn_q.bias", "blk.1.attn_output.bias", "blk.2.ffn_gate.bias")
    layers = spec_from_gguf(metadata("llama"), tensor_names=names).layers
    assert [layer.attention.qkv_bias for layer in layers] == [False, True, False, False]
    assert [layer.attention.o_bias for layer in layers] == [False, True, False, False]
    assert [layer.mlp.bias for layer in layers] == [False, False, True, False]
    assert spec_from_gguf(metadata("qwen2"), tensor_names=plain).layers[0].attention.qkv_bias


def test_absent_kv_heads_are_query_heads() -> None:
    assert spec("llama", attention__head_count_kv=None).layers[0].attention.num_kv_heads == 4


def test_heads_and_widths_may_differ_by_layer() -> None:
    s = spec("llama", attention__head_count_kv=[1, 2, 4, 1], feed_forward_length=[96, 64, 32, 96])
    assert [layer.attention.num_kv_heads for layer in s.layers] == [1, 2, 4, 1]
    assert [layer.mlp.intermediate for layer in s.layers] == [96, 64, 32, 96]
    with pytest.raises(SpecError, match="head_count_kv"):
        spec("llama", attention__head_count_kv=[1, 2, 4])


def test_llama_has_a_window_only_where_the_file_states_one() -> None:
    assert windows(spec("llama")) == [None] * 4
    assert windows(spec("llama", attention__sliding_window=24)) == [24] * 4
    assert windows(spec("llama", attention__sliding_window=0)) == [None] * 4


def test_gemma_patterns() -> None:
    assert windows(spec("gemma2")) == [4096, None, 4096, None]
    assert windows(spec("gemma3")) == [None] * 4
    six = spec("gemma3", block_count=7, attention__sliding_window=24)
    assert [w is None for w in windows(six)] == [(i + 1) % 6 == 0 for i in range(7)]
    flags = [True, False, False, True]
    stated = spec("gemma3", attention__sliding_window=24, attention__sliding_window_pattern=flags)
    assert windows(stated) == [24, None, None, 24]


def test_gemma3_without_windows_rotates_every_layer_by_the_global_theta() -> None:
    assert {layer.attention.rope.theta for layer in spec("gemma3", rope__freq_base=1e6).layers} == {1e6}


def test_the_27b_gemmas_scale_attention_by_hidden_over_heads() -> None:
    gemma2 = spec("gemma2", block_count=46, embedding_length=4608, attention__head_count=32,
                  attention__head_count_kv=16, attention__key_length=128)  # fmt: skip
    gemma3 = spec("gemma3", block_count=62, embedding_length=5376, attention__head_count=32,
                  attention__head_count_kv=16, attention__key_length=128)  # fmt: skip
    assert gemma2.layers[0].attention.scale == 144**-0.5
    assert gemma3.layers[0].attention.scale == 168**-0.5
    assert spec("gemma2", attention__key_length=128).layers[0].attention.scale == 128**-0.5


def test_llama3_scaling_is_one_divisor_per_pair() -> None:
    factors = [1.0, 1.0, 1.5, 2.0, 8.0, 8.0, 8.0, 8.0]
    s = spec_from_gguf(metadata("llama", rope__freq_base=5e5), rope_factors=factors)
    rope = s.layers[0].attention.rope
    assert rope.scaling.kind is RopeScalingKind.FACTORS
    plain = spec("llama", rope__freq_base=5e5).layers[0].attention.rope
    assert rope.inv_freqs() == tuple(f / d for f, d in zip(plain.inv_freqs(), factors, strict=True))


@pytest.mark.parametrize("factors", [[1.0] * 7, [], [1.0] * 7 + [math.nan], [1.0] * 7 + [0.0]], ids=str)
def test_impossible_rope_factors_are_refused(factors: list[float]) -> None:
    with pytest.raises(SpecError, match="rope_freqs"):
        spec_from_gguf(metadata("llama"), rope_factors=factors)


def test_scaling_without_a_factor_scales_nothing() -> None:
    assert spec("llama", rope__scaling__type="linear").layers[0].attention.rope.scaling.kind is RopeScalingKind.NONE
    old_name = spec("llama", rope__scale_linear=2.0).layers[0].attention.rope.scaling
    assert (old_name.kind, old_name.factor) == (RopeScalingKind.LINEAR, 2.0)


def test_yarn_factors_multiply() -> None:
    keys = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 128}
    by_default = 0.1 * math.log(4.0) + 1.0

    def attention_factor(**more: float) -> float:
        return spec("llama", **keys, **more).layers[0].attention.rope.scaling.attention_factor

    assert attention_factor() == pytest.approx(by_default, rel=1e-12)
    assert attention_factor(rope__scaling__attn_factor=0.5) == pytest.approx(0.5 * by_default, rel=1e-12)
    assert attention_factor(rope__scaling__yarn_log_multiplier=1.0) == pytest.approx(1.0, rel=1e-12)
    assert attention_factor(rope__scaling__yarn_attn_factor=1.25) == 1.25


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope__scaling__type", "longrope"),
        ("rope__dimension_count", 8),
        ("attention__value_length", 8),
        ("expert_count", 8),
        ("attention__sliding_window_pattern", [True]),
        ("attention__sliding_window_pattern", "2"),
        ("block_count", 10**9),
        ("block_count", 0),
        ("block_count", "4"),
        ("embedding_length", -64),
        ("attention__layer_norm_rms_epsilon", math.nan),
        ("attention__layer_norm_rms_epsilon", None),
        ("context_length", None),
        ("rope__freq_base", math.inf),
        ("attention__head_count", [4, 4]),
        ("attention__head_count", 0),
    ],
)
def test_what_can_not_be_is_refused_by_key(key: str, value: object) -> None:
    with pytest.raises(SpecError, match=key.replace("__", r"\.")):
        spec("llama", **{key: value})


def test_unknown_architectures_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownArchitecture, match=r"'phi3'.*gemma2, gemma3, llama, qwen2, qwen3"):
        spec("phi3")
    with pytest.raises(SpecError, match=r"general\.architecture"):
        spec_from_gguf({})


def test_names_activation_and_dtype() -> None:
    s = spec_from_gguf({**metadata("gemma2"), "general.name": "Tiny", "general.file_type": 1})
    assert (s.name, s.source_dtype) == ("Tiny", "f16")
    assert s.layers[0].mlp.activation is Activation.GELU_TANH
    assert spec("llama").layers[0].mlp.activation is Activation.SILU
