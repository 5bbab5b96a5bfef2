"""The tiny models that the Hugging Face goldens are made of: configs as the hub writes them, nothing else.

Owns the facts of each family's row. Knows neither torch nor transformers, so that tests can read it too.
Sizes are the smallest at which every kind of layer appears, every row is a whole number of 32-blocks, and
the vocabulary is no multiple of a vector's width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PROMPT_TOKENS = 40
GREEDY_TOKENS = 64
WINDOW = 24
VOCAB = 259

Config = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """One golden folder.

    `weights_of` names the family whose weights are used (its own when empty): families of equal shape share
    the bytes. `ablations` are changes of the config that must move the logits; they prove that the golden
    sees the feature it is there for. The standard deviations and the norms' offsets keep logits spread out
    and text varied: a tied model repeats its last token where the embedding outweighs the layers.
    """

    name: str
    config: Config
    weights_of: str = ""
    weights_seed: int = 1
    matrix_std: float = 0.11
    embed_std: float = 0.5
    head_std: float = 0.35
    norm_offset: float = 1.0
    qk_norm_offset: float = 1.0
    final_norm_offset: float = 1.0
    ablations: dict[str, Config] = field(default_factory=dict)


_SIZES: Config = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
    "use_cache": True,
}

_LLAMA: Config = {
    **_SIZES,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "pretraining_tp": 1,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}

_LLAMA3_SCALING: Config = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_type": "llama3",
}
_YARN_SCALING: Config = {
    "type": "yarn",
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}

_QWEN2: Config = {
    **_SIZES,
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "sliding_window": WINDOW,
    "use_sliding_window": False,
    "max_window_layers": 3,
    "tie_word_embeddings": True,
}

_GEMMA2: Config = {
    **_SIZES,
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "head_dim": 32,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 8.0,
    "query_pre_attn_scalar": 24,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "sliding_window": WINDOW,
    "cache_implementation": "hybrid",
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}

_GEMMA3: Config = {
    **_SIZES,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "query_pre_attn_scalar": 24,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": WINDOW,
    "sliding_window_pattern": 3,
    "cache_implementation": "hybrid",
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}

_WINDOW_OFF_BY_ONE: dict[str, Config] = {
    "window_minus_1": {"sliding_window": WINDOW - 1},
    "window_plus_1": {"sliding_window": WINDOW + 1},
}

FAMILIES: tuple[Family, ...] = (
    Family("llama", _LLAMA, ablations={"theta": {"rope_theta": 20000.0}, "eps": {"rms_norm_eps": 1e-3}}),
    Family(
        "llama_tied_bias",
        {
            **_LLAMA,
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
        matrix_std=0.15,
        embed_std=0.25,
    ),
    Family(
        "llama3_rope",
        {**_LLAMA, "rope_theta": 500000.0, "rope_scaling": _LLAMA3_SCALING},
        weights_of="llama",
        ablations={
            "no_scaling": {"rope_scaling": None},
            "linear": {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            "low_freq": {"rope_scaling": {**_LLAMA3_SCALING, "low_freq_factor": 2.0}},
            "high_freq": {"rope_scaling": {**_LLAMA3_SCALING, "high_freq_factor": 6.0}},
        },
    ),
    Family(
        "llama_linear_rope",
        {**_LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}},
        weights_of="llama",
        ablations={"no_scaling": {"rope_scaling": None}},
    ),
    Family(
        "llama_yarn",
        {**_LLAMA, "rope_theta": 500.0, "rope_scaling": _YARN_SCALING},
        weights_of="llama",
        ablations={
            "no_scaling": {"rope_scaling": None},
            "no_attention_factor": {"rope_scaling": {**_YARN_SCALING, "attention_factor": 1.0}},
            "beta_fast": {"rope_scaling": {**_YARN_SCALING, "beta_fast": 8.0}},
            "original_length": {"rope_scaling": {**_YARN_SCALING, "original_max_position_embeddings": 64}},
        },
    ),
    Family(
        "mistral",
        {
            **{k: v for k, v in _LLAMA.items() if k not in ("attention_bias", "mlp_bias", "pretraining_tp")},
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": WINDOW,
        },
        weights_of="llama",
        ablations={"no_window": {"sliding_window": None}, **_WINDOW_OFF_BY_ONE},
    ),
    Family("qwen2", _QWEN2, matrix_std=0.15, embed_std=0.25),
    Family(
        "qwen2_window",
        {**_QWEN2, "use_sliding_window": True, "max_window_layers": 1},
        weights_of="qwen2",
        ablations={
            "no_window": {"use_sliding_window": False},
            "all_windows": {"max_window_layers": 0},
            **_WINDOW_OFF_BY_ONE,
        },
    ),
    Family(
        "qwen3",
        {
            **_SIZES,
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "head_dim": 32,
            "hidden_act": "silu",
            "attention_bias": False,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "rope_scaling": None,
            "sliding_window": None,
            "use_sliding_window": False,
            "max_window_layers": 3,
            "tie_word_embeddings": False,
        },
        ablations={"theta": {"rope_theta": 10000.0}},
    ),
    Family(
        "gemma2",
        _GEMMA2,
        matrix_std=0.15,
        embed_std=0.06,
        norm_offset=0.0,
        qk_norm_offset=0.4,
        final_norm_offset=4.0,
        ablations={
            "no_attention_cap": {"attn_logit_softcapping": None},
            "no_final_cap": {"final_logit_softcapping": None},
            "scale_by_head_dim": {"query_pre_attn_scalar": 32},
            "all_windows": {"layer_types": ["sliding_attention"] * 3},
            "no_windows": {"layer_types": ["full_attention"] * 3},
            "exact_gelu": {"hidden_activation": "gelu"},
            **_WINDOW_OFF_BY_ONE,
        },
    ),
    Family(
        "gemma2_head_scale",
        {**_GEMMA2, "query_pre_attn_scalar": 32},
        weights_of="gemma2",
    ),
    Family(
        "gemma3",
        _GEMMA3,
        matrix_std=0.15,
        embed_std=0.06,
        norm_offset=0.0,
        qk_norm_offset=0.4,
        final_norm_offset=4.0,
        ablations={
            "one_theta": {"rope_local_base_freq": 1000000.0},
            "no_scaling": {"rope_scaling": None},
            "scale_by_head_dim": {"query_pre_attn_scalar": 16},
            "all_windows": {"layer_types": ["sliding_attention"] * 4},
            "exact_gelu": {"hidden_activation": "gelu"},
            **_WINDOW_OFF_BY_ONE,
        },
    ),
    Family(
        "gemma3_head_scale",
        {**_GEMMA3, "query_pre_attn_scalar": 16},
        weights_of="gemma3",
    ),
)

FAMILY_BY_NAME = {family.name: family for family in FAMILIES}

STORED_TYPES = {"llama_bf16": "bfloat16", "llama_f16": "float16"}
"""Copies of llama with weights rounded to 16 bits; their goldens are float32 runs of the rounded weights."""
