"""Decoders of one plan: norm, attention with its own heads, norm, a gated block or experts. One row each.

Families: llama, mistral, qwen2 (and MiMo 7B), qwen3, phi3, smollm3, olmo2, gemma2, gemma3, and with experts mixtral,
qwen3_moe, glm4_moe, minimax_m2; of Qwen3-VL the half for text. The sizes that make a model what it is (hidden_size,
num_hidden_layers, intermediate_size) are never assumed. Source: transformers 5.24.0, models/*/configuration_*.py and,
for what a field does, modeling_*.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kvwise.frozen import dataclass
from kvwise.spec.families.moe import dense_then_sparse, num_experts_of, shared_experts, stepped
from kvwise.spec.families.reading import (
    FULL,
    SLIDING,
    activation_of,
    every,
    head_dim_of,
    notes_of,
    num_kv_heads_of,
    num_layers_of,
    read_layer_kinds,
    refuse,
    softcap_of,
    source_dtype_of,
    tied_of,
)
from kvwise.spec.fields import Fields
from kvwise.spec.hf_rope import RopeDefaults, read_rope
from kvwise.spec.model import AttentionSpec, FeedForward, LayerSpec, MlpSpec, ModelSpec, MoeSpec, NormSpec, QkNorm

_PLAIN_ROPE: Final = RopeDefaults()


@dataclass(frozen=True, slots=True)
class FamilyDefaults:
    """One family: what its config class assumes, and what its model does whatever the config says.

    kv_heads None: as many as query heads. head_dim None: hidden_size / num_attention_heads. `window` is assumed
    where sliding_window is absent; None: no window. biases: of q, k and v, and of o. rotates: per layer, None: all.
    """

    family: str
    vocab: int
    heads: int
    kv_heads: int | None
    max_positions: int
    layer_kinds: Callable[[Fields, int], tuple[str, ...]]
    feed_forward: Callable[[Fields, FamilyDefaults, int], tuple[FeedForward, ...]]
    biases: Callable[[Fields], tuple[bool, bool]]
    eps: float = 1e-6
    head_dim: int | None = None
    activation_field: str = "hidden_act"
    activation: str = "silu"
    tied: bool = False
    window: int | None = None
    rope: RopeDefaults = _PLAIN_ROPE
    rotates: Callable[[Fields, int], tuple[bool, ...]] | None = None
    qk_norm: Callable[[Fields], QkNorm | None] = lambda _: None
    gemma: bool = False
    query_scalar: int | None = None
    logit_softcap: float | None = None
    attention_softcap: float | None = None

    @property
    def mixes_kinds(self) -> bool:
        return self.layer_kinds not in (_all_full, _stated_window)


# Which layers have a window


def _all_full(_: Fields, num_layers: int) -> tuple[str, ...]:
    return (FULL,) * num_layers


def _stated_window(config: Fields, num_layers: int) -> tuple[str, ...]:
    # Mistral's class default is 4096, the window of v0.1, whose config states it. Every later Mistral has none, so a
    # config that does not mention one is taken at its word.
    return (SLIDING if "sliding_window" in config else FULL,) * num_layers


def _qwen_kinds(config: Fields, num_layers: int) -> tuple[str, ...]:
    first = num_layers
    if config.flag("use_sliding_window", False):
        first = config.integer("max_window_layers", 28, low=0)
    return tuple(SLIDING if i >= first else FULL for i in range(num_layers))


def _qwen_moe_kinds(config: Fields, num_layers: int) -> tuple[str, ...]:
    return (SLIDING if config.flag("use_sliding_window", False) else FULL,) * num_layers


def _smollm_kinds(config: Fields, num_layers: int) -> tuple[str, ...]:
    """With the switch, layers that do not rotate have a window."""
    windowed = config.flag("use_sliding_window", False) and "sliding_window" in config
    return tuple(SLIDING if windowed and not r else FULL for r in _rotating(config, num_layers))


def _every(period_default: int, field: str | None = None) -> Callable[[Fields, int], tuple[str, ...]]:
    """Every `period`-th layer sees everything, the others a window."""

    def kinds(config: Fields, num_layers: int) -> tuple[str, ...]:
        period = config.integer(field, period_default) if field else period_default
        return every(period, num_layers, SLIDING)

    return kinds


def _rotating(config: Fields, num_layers: int) -> tuple[bool, ...]:
    """SmolLM3: `no_rope_layers` has 1 where a layer rotates; without it every fourth does not."""
    stated = config.bits("no_rope_layers", num_layers)
    if stated is not None:
        return stated
    interval = config.integer("no_rope_layer_interval", 4)
    return tuple((i + 1) % interval != 0 for i in range(num_layers))


# Biases of (q, k and v; o)


def _no_biases(_: Fields) -> tuple[bool, bool]:
    return False, False


def _qkv_biases(_: Fields) -> tuple[bool, bool]:
    return True, False


def _stated_biases(config: Fields) -> tuple[bool, bool]:
    bias = config.flag("attention_bias", False)
    return bias, bias


def _stated_qkv_biases(config: Fields) -> tuple[bool, bool]:
    return config.flag("attention_bias", False), False


# Norms of queries and keys


def _head_norm(_: Fields) -> QkNorm | None:
    return QkNorm.HEAD


def _width_norm(config: Fields) -> QkNorm | None:
    refuse(config, "use_qk_norm", "true: the family's model always has these norms", True)
    return QkNorm.WIDTH


def _stated_head_norm(config: Fields) -> QkNorm | None:
    return QkNorm.HEAD if config.flag("use_qk_norm", False) else None


# Feed-forward blocks


def _gated(fields: Fields, family: FamilyDefaults, num_layers: int) -> tuple[FeedForward, ...]:
    mlp = MlpSpec(
        fields.integer("intermediate_size"), activation_of(fields, family.activation, family.activation_field)
    )
    return (mlp,) * num_layers


def _gated_with_bias(fields: Fields, family: FamilyDefaults, num_layers: int) -> tuple[FeedForward, ...]:
    mlp = MlpSpec(fields.integer("intermediate_size"), activation_of(fields, "silu"), fields.flag("mlp_bias", False))
    return (mlp,) * num_layers


def _all_experts(num_experts: int, top_k: int) -> Callable[[Fields, FamilyDefaults, int], tuple[FeedForward, ...]]:
    """Mixtral, MiniMax-M2: experts of intermediate_size in every layer."""

    def blocks(fields: Fields, family: FamilyDefaults, num_layers: int) -> tuple[FeedForward, ...]:
        expert = MlpSpec(fields.integer("intermediate_size"), activation_of(fields, family.activation))
        experts = num_experts_of(fields, num_experts, "num_local_experts", "num_experts")
        return (MoeSpec(experts, fields.integer("num_experts_per_tok", top_k), expert),) * num_layers

    return blocks


def _qwen_experts(fields: Fields, family: FamilyDefaults, num_layers: int) -> tuple[FeedForward, ...]:
    activation = activation_of(fields, family.activation)
    expert = MlpSpec(fields.integer("moe_intermediate_size", 768), activation)
    experts = num_experts_of(fields, 128, "num_experts", "num_local_experts")
    moe = MoeSpec(experts, fields.integer("num_experts_per_tok", 8), expert)
    return stepped(fields, num_layers, MlpSpec(fields.integer("intermediate_size"), activation), moe)


def _glm_experts(fields: Fields, family: FamilyDefaults, num_layers: int) -> tuple[FeedForward, ...]:
    activation = activation_of(fields, family.activation)
    width = fields.integer("moe_intermediate_size", 1408)
    moe = MoeSpec(
        num_experts_of(fields, 128, "n_routed_experts", "num_local_experts"),
        fields.integer("num_experts_per_tok", 8),
        MlpSpec(width, activation),
        shared_experts(fields, width, activation, 1),
    )
    return dense_then_sparse(fields, num_layers, MlpSpec(fields.integer("intermediate_size"), activation), moe, 1)


_FAMILIES: Final = {
    "llama": FamilyDefaults("llama", 32_000, 32, None, 2048, _all_full, _gated_with_bias, _stated_biases),
    "mistral": FamilyDefaults("mistral", 32_000, 32, 8, 131_072, _stated_window, _gated, _no_biases),
    "qwen2": FamilyDefaults("qwen2", 151_936, 32, 32, 32_768, _qwen_kinds, _gated, _qkv_biases, window=4096),
    "qwen3": FamilyDefaults(
        "qwen3", 151_936, 32, 32, 32_768, _qwen_kinds, _gated, _stated_biases, window=4096, head_dim=128,
        qk_norm=_head_norm,
    ),
    "qwen3_vl_text": FamilyDefaults(
        "qwen3", 151_936, 32, 32, 128_000, _all_full, _gated, _stated_biases, head_dim=128, qk_norm=_head_norm,
        rope=RopeDefaults(5_000_000.0),
    ),
    "mimo": FamilyDefaults("qwen2", 151_680, 32, 32, 32_768, _qwen_kinds, _gated, _stated_qkv_biases, window=4096),
    "phi3": FamilyDefaults(
        "phi3", 32_064, 32, None, 4096, _stated_window, _gated, _no_biases, eps=1e-5,
        rope=RopeDefaults(rotary_factor=1.0, more_kinds=("longrope",)),
    ),
    "smollm3": FamilyDefaults(
        "smollm3", 128_256, 16, 4, 32_768, _smollm_kinds, _gated_with_bias, _stated_biases, tied=True,
        rope=RopeDefaults(2_000_000.0), rotates=_rotating,
    ),
    "olmo2": FamilyDefaults(
        "olmo2", 50_304, 32, None, 2048, _all_full, _gated, _stated_biases, eps=1e-5, qk_norm=_width_norm,
    ),
    "gemma2": FamilyDefaults(
        "gemma2", 256_000, 8, 4, 8192, _every(2), _gated, _stated_biases, window=4096, head_dim=256, gemma=True,
        tied=True, activation_field="hidden_activation", activation="gelu_pytorch_tanh", query_scalar=256,
        logit_softcap=30.0, attention_softcap=50.0,
    ),
    "gemma3_text": FamilyDefaults(
        "gemma3", 262_208, 8, 4, 131_072, _every(6, "sliding_window_pattern"), _gated, _stated_biases, window=4096,
        head_dim=256, gemma=True, tied=True, activation_field="hidden_activation", activation="gelu_pytorch_tanh",
        query_scalar=256, qk_norm=_head_norm, rope=RopeDefaults(1_000_000.0, 10_000.0),
    ),
    "mixtral": FamilyDefaults(
        "mixtral", 32_000, 32, 8, 131_072, _stated_window, _all_experts(8, 2), _no_biases, eps=1e-5,
        rope=RopeDefaults(1_000_000.0),
    ),
    "qwen3_moe": FamilyDefaults(
        "qwen3_moe", 151_936, 32, 4, 32_768, _qwen_moe_kinds, _qwen_experts, _stated_biases, window=4096,
        qk_norm=_head_norm,
    ),
    "qwen3_vl_moe_text": FamilyDefaults(
        "qwen3_moe", 151_936, 16, 16, 128_000, _all_full, _qwen_experts, _stated_biases, qk_norm=_head_norm,
        rope=RopeDefaults(5_000_000.0),
    ),
    "glm4_moe": FamilyDefaults(
        "glm4_moe", 151_552, 96, 8, 131_072, _all_full, _glm_experts, _stated_qkv_biases, eps=1e-5,
        qk_norm=_stated_head_norm, rope=RopeDefaults(rotary_factor=0.5),
    ),
    "minimax_m2": FamilyDefaults(
        "minimax_m2", 200_064, 48, 8, 196_608, _all_full, _all_experts(256, 8), _no_biases, head_dim=128,
        qk_norm=_width_norm, rope=RopeDefaults(5_000_000.0, rotary_factor=1.0),
    ),
}  # fmt: skip


def read(fields: Fields, top: Fields, model_type: str) -> ModelSpec:
    family = _FAMILIES[model_type]
    hidden = fields.integer("hidden_size")
    num_layers = num_layers_of(fields)
    max_positions = fields.integer("max_position_embeddings", family.max_positions)
    attention = _attention(fields, family, hidden, num_layers, max_positions)
    blocks = family.feed_forward(fields, family, num_layers)
    return ModelSpec(
        family=family.family,
        hidden=hidden,
        vocab=fields.integer("vocab_size", family.vocab),
        max_positions=max_positions,
        layers=tuple(LayerSpec(a, f) for a, f in zip(attention, blocks, strict=True)),
        norm=NormSpec(fields.number("rms_norm_eps", family.eps), weight_offset=1.0 if family.gemma else 0.0),
        tied_embeddings=tied_of(fields, top, family.tied),
        embedding_scale=gemma_embedding_scale(hidden) if family.gemma else 1.0,
        post_norms=family.gemma,
        logit_softcap=softcap_of(fields, "final_logit_softcapping", family.logit_softcap) if family.gemma else None,
        source_dtype=source_dtype_of(fields, top),
        notes=notes_of(fields, top),
    )


def gemma_embedding_scale(hidden: int) -> float:
    """sqrt(hidden), as float32 arithmetic has it.

    transformers rounds it to the dtype of the weights it runs with (Gemma3TextScaledWordEmbedding): bfloat16 when
    it computes in bfloat16, float32 when the same checkpoint is loaded in float32. kvwise computes in float32, so it
    is never rounded here; llama.cpp does the same (sqrtf(n_embd)).
    """
    return math.sqrt(hidden)


def _attention(
    fields: Fields, family: FamilyDefaults, hidden: int, num_layers: int, max_positions: int
) -> tuple[AttentionSpec, ...]:
    num_q_heads = fields.integer("num_attention_heads", family.heads)
    num_kv_heads = num_kv_heads_of(fields, family.kv_heads, num_q_heads)
    head_dim = head_dim_of(fields, hidden, num_q_heads, family.head_dim)
    pattern = family.layer_kinds(fields, num_layers)
    kinds = read_layer_kinds(fields, pattern, family.family, known=(FULL, SLIDING), mixes=family.mixes_kinds)
    window = _window(fields, family) if SLIDING in kinds else None
    qkv_bias, o_bias = family.biases(fields)
    scalar = fields.number("query_pre_attn_scalar", family.query_scalar) if family.query_scalar else head_dim
    rotates = family.rotates(fields, num_layers) if family.rotates else (True,) * num_layers
    rope = _rope_defaults(fields, family, head_dim)

    def attention(kind: str, rotating: bool) -> AttentionSpec:
        return AttentionSpec(
            num_q_heads=num_q_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            scale=scalar**-0.5,
            rope=read_rope(fields, kind, head_dim, max_positions, rope) if rotating else None,
            window=window if kind == SLIDING else None,
            softcap=_attention_softcap(fields, family),
            qkv_bias=qkv_bias,
            o_bias=o_bias,
            qk_norm=family.qk_norm(fields),
        )

    distinct = {key: attention(*key) for key in dict.fromkeys(zip(kinds, rotates, strict=True))}
    return tuple(distinct[key] for key in zip(kinds, rotates, strict=True))


def _rope_defaults(fields: Fields, family: FamilyDefaults, head_dim: int) -> RopeDefaults:
    """MiniMax-M2's files say how many dimensions rotate in a field of its own."""
    if family.family == "minimax_m2" and "rotary_dim" in fields:
        return replace(family.rope, rotary_factor=fields.integer("rotary_dim", high=head_dim) / head_dim)
    return family.rope


def _window(fields: Fields, family: FamilyDefaults) -> int:
    if family.layer_kinds is _qwen_kinds and not fields.flag("use_sliding_window", False):
        raise fields.wrong("use_sliding_window", "true where layer_types has sliding_attention")
    if fields.states("sliding_window") and "sliding_window" not in fields:
        raise fields.wrong("sliding_window", "a number of positions where layers have a window")
    return fields.integer("sliding_window", family.window or 0)


def _attention_softcap(fields: Fields, family: FamilyDefaults) -> float | None:
    if not family.gemma:
        return None
    if fields.raw("use_bidirectional_attention"):
        raise fields.wrong("use_bidirectional_attention", "false: only causal models are known")
    if family.family == "gemma3" and "attn_logit_softcapping" in fields:
        # The config class has the field, the model ignores it: q/k norms replaced the cap.
        raise fields.wrong("attn_logit_softcapping", "null: Gemma 3 has no attention soft cap")
    return softcap_of(fields, "attn_logit_softcapping", family.attention_softcap)
