"""Qwen3-Next and Qwen3.5: three gated delta nets for each layer of attention with an output gate; dense or experts.

Layers of multi-token prediction and pictures are not counted. Source: transformers 5.24.0,
models/{qwen3_next,qwen3_5,qwen3_5_moe}/configuration_*.py and modeling_*.py.
"""

from __future__ import annotations

from typing import Final

from kvwise.frozen import dataclass
from kvwise.spec.families.moe import num_experts_of, stepped
from kvwise.spec.families.reading import (
    FULL,
    LINEAR,
    activation_of,
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
    DeltaNetSpec,
    FeedForward,
    LayerSpec,
    Mixer,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    NormSpec,
    QkNorm,
    VariedAttentionSpec,
)


@dataclass(frozen=True, slots=True)
class _Defaults:
    """Class defaults. experts None: a dense block in every layer."""

    vocab: int
    kv_heads: int
    experts: int | None
    top_k: int = 0


_FAMILIES: Final = {
    "qwen3_next": _Defaults(151_936, 2, 512, 10),
    "qwen3_5_text": _Defaults(248_320, 4, None),
    "qwen3_5_moe_text": _Defaults(248_320, 2, 256, 8),
}


def read(fields: Fields, top: Fields, model_type: str) -> ModelSpec:
    family = _FAMILIES[model_type]
    name = model_type.removesuffix("_text")
    hidden = fields.integer("hidden_size")
    num_layers = num_layers_of(fields)
    positions = fields.integer("max_position_embeddings", 32_768)
    pattern = every(fields.integer("full_attention_interval", 4), num_layers, LINEAR)
    kinds = read_layer_kinds(fields, pattern, name, known=(FULL, LINEAR))
    mixers: dict[str, Mixer] = {FULL: _attention(fields, family, hidden, positions), LINEAR: _delta_net(fields)}
    blocks = _blocks(fields, family, num_layers)
    return ModelSpec(
        family=name,
        hidden=hidden,
        vocab=fields.integer("vocab_size", family.vocab),
        max_positions=positions,
        layers=tuple(LayerSpec(mixers[kind], block) for kind, block in zip(kinds, blocks, strict=True)),
        norm=NormSpec(fields.number("rms_norm_eps", 1e-6), weight_offset=1.0),
        tied_embeddings=tied_of(fields, top, False),
        source_dtype=source_dtype_of(fields, top),
        notes=notes_of(fields, top),
    )


def _attention(fields: Fields, family: _Defaults, hidden: int, positions: int) -> VariedAttentionSpec:
    heads = fields.integer("num_attention_heads", 16)
    head_dim = head_dim_of(fields, hidden, heads, 256)
    bias = fields.flag("attention_bias", False)
    return VariedAttentionSpec(
        num_q_heads=heads,
        num_kv_heads=num_kv_heads_of(fields, family.kv_heads, heads),
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=read_rope(fields, FULL, head_dim, positions, RopeDefaults(rotary_factor=0.25)),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=QkNorm.HEAD,
        output_gate=True,
    )


def _delta_net(fields: Fields) -> DeltaNetSpec:
    return DeltaNetSpec(
        num_key_heads=fields.integer("linear_num_key_heads", 16),
        num_value_heads=fields.integer("linear_num_value_heads", 32),
        key_dim=fields.integer("linear_key_head_dim", 128),
        value_dim=fields.integer("linear_value_head_dim", 128),
        conv_kernel=fields.integer("linear_conv_kernel_dim", 4),
    )


def _blocks(fields: Fields, family: _Defaults, num_layers: int) -> tuple[FeedForward, ...]:
    activation = activation_of(fields, "silu")
    if family.experts is None:
        return (MlpSpec(fields.integer("intermediate_size"), activation),) * num_layers
    moe = MoeSpec(
        num_experts=num_experts_of(fields, family.experts, "num_experts", "num_local_experts"),
        top_k=fields.integer("num_experts_per_tok", family.top_k),
        expert=MlpSpec(fields.integer("moe_intermediate_size", 512), activation),
        shared=MlpSpec(fields.integer("shared_expert_intermediate_size", 512), activation),
        shared_gate=True,
    )
    if "intermediate_size" not in fields:  # Qwen3.5 has no dense layers, and no such field
        return (moe,) * num_layers
    return stepped(fields, num_layers, MlpSpec(fields.integer("intermediate_size"), activation), moe)
