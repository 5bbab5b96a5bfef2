"""gpt-oss: windows in every other layer, attention sinks, experts with biases in every layer.

Source: transformers 5.24.0, models/gpt_oss/configuration_gpt_oss.py and modeling_gpt_oss.py; arXiv 2508.10925.
"""

from __future__ import annotations

from kvwise.spec.families.moe import num_experts_of
from kvwise.spec.families.reading import (
    FULL,
    SLIDING,
    every,
    head_dim_of,
    notes_of,
    num_kv_heads_of,
    num_layers_of,
    read_layer_kinds,
    source_dtype_of,
    tied_of,
)
from kvwise.spec.fields import Fields
from kvwise.spec.hf_rope import RopeDefaults, read_rope
from kvwise.spec.model import (
    Activation,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    NormSpec,
    RopeScaling,
    RopeScalingKind,
    RopeSpec,
    VariedAttentionSpec,
)


def read(fields: Fields, top: Fields, model_type: str) -> ModelSpec:
    hidden = fields.integer("hidden_size")
    num_layers = num_layers_of(fields)
    heads = fields.integer("num_attention_heads", 64)
    head_dim = head_dim_of(fields, hidden, heads, 64)
    positions = fields.integer("max_position_embeddings", 131_072)
    bias = fields.flag("attention_bias", True)
    rope = _rope(fields, head_dim, positions)
    kv_heads = num_kv_heads_of(fields, 8, heads)
    kinds = read_layer_kinds(fields, every(2, num_layers, SLIDING), "gpt_oss", known=(FULL, SLIDING))
    window = fields.integer("sliding_window", 128)
    attention = {
        kind: VariedAttentionSpec(
            heads, kv_heads, head_dim, head_dim**-0.5, rope, window if kind == SLIDING else None,
            qkv_bias=bias, o_bias=bias, sinks=True,
        )
        for kind in (FULL, SLIDING)
    }  # fmt: skip
    expert = MlpSpec(fields.integer("intermediate_size"), Activation.SWIGLU_CLAMPED, bias=True)
    experts = num_experts_of(fields, 128, "num_local_experts", "num_experts")
    moe = MoeSpec(experts, fields.integer("num_experts_per_tok", 4), expert, router_bias=True)
    return ModelSpec(
        family="gpt_oss",
        hidden=hidden,
        vocab=fields.integer("vocab_size", 201_088),
        max_positions=positions,
        layers=tuple(LayerSpec(attention[kind], moe) for kind in kinds),
        norm=NormSpec(fields.number("rms_norm_eps", 1e-5)),
        tied_embeddings=tied_of(fields, top, False),
        source_dtype=source_dtype_of(fields, top),
        notes=notes_of(fields, top),
    )


def _rope(fields: Fields, head_dim: int, positions: int) -> RopeSpec:
    """Where no rotation is stated at all, the class assumes a scaled one."""
    if "rope_parameters" in fields or "rope_scaling" in fields:
        return read_rope(fields, FULL, head_dim, positions, RopeDefaults(150_000.0))
    fields.defaulted.append("rope_parameters")
    scaling = RopeScaling(
        RopeScalingKind.YARN, factor=32.0, original_max_positions=4096, attention_factor=1.3465735902799727,
        truncate=False,
    )  # fmt: skip
    return RopeSpec(fields.number("rope_theta", 150_000.0, low=1.0), head_dim, scaling)
