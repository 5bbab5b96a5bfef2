"""Llama 4: chunks in three of four layers, the fourth sees everything and does not rotate; experts beside a shared one.

Not in the spec, because it rules numbers and no cost: the temperature of queries in layers that do not rotate.
Source: transformers 5.24.0, models/llama4/configuration_llama4.py and modeling_llama4.py.
"""

from __future__ import annotations

from kvwise.spec.families.moe import num_experts_of
from kvwise.spec.families.reading import (
    CHUNKED,
    FULL,
    activation_of,
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
    FeedForward,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    NormSpec,
    QkNorm,
    RopeSpec,
    VariedAttentionSpec,
)


def read(fields: Fields, top: Fields, model_type: str) -> ModelSpec:
    num_layers = num_layers_of(fields)
    positions = fields.integer("max_position_embeddings", 131_072)
    hidden = fields.integer("hidden_size")
    rotates = _rotating(fields, num_layers)
    chunk = None if fields.states("attention_chunk_size") and "attention_chunk_size" not in fields else 8192
    chunk = fields.integer("attention_chunk_size", chunk) if chunk else None
    pattern = tuple(CHUNKED if r and chunk else FULL for r in rotates)
    kinds = read_layer_kinds(fields, pattern, "llama4", known=(FULL, CHUNKED))
    heads = fields.integer("num_attention_heads", 40)
    head_dim = head_dim_of(fields, hidden, heads, 128)
    rope = read_rope(fields, FULL, head_dim, positions, RopeDefaults(500_000.0, more_kinds=("llama3",)))
    kv_heads = num_kv_heads_of(fields, 8, heads)
    bias = fields.flag("attention_bias", False)
    qk_norm = QkNorm.PLAIN if fields.flag("use_qk_norm", True) else None

    def attention(kind: str, rotating: bool) -> VariedAttentionSpec:
        own: RopeSpec | None = rope if rotating else None
        return VariedAttentionSpec(
            heads, kv_heads, head_dim, head_dim**-0.5, own, qkv_bias=bias, o_bias=bias,
            qk_norm=qk_norm if rotating else None, chunk=chunk if kind == CHUNKED else None,
        )  # fmt: skip

    return ModelSpec(
        family="llama4",
        hidden=hidden,
        vocab=fields.integer("vocab_size", 202_048),
        max_positions=positions,
        layers=tuple(
            LayerSpec(attention(kind, rotating), block)
            for kind, rotating, block in zip(kinds, rotates, _blocks(fields, num_layers), strict=True)
        ),
        norm=NormSpec(fields.number("rms_norm_eps", 1e-5)),
        tied_embeddings=tied_of(fields, top, False),
        source_dtype=source_dtype_of(fields, top),
        notes=notes_of(fields, top),
    )


def _rotating(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """`no_rope_layers` has 1 where a layer rotates; empty or without it every `no_rope_layer_interval`-th does not."""
    if fields.raw("no_rope_layers") in (None, []):
        interval = fields.integer("no_rope_layer_interval", 4)
        return tuple((i + 1) % interval != 0 for i in range(num_layers))
    return fields.bits("no_rope_layers", num_layers) or ()


def _blocks(fields: Fields, num_layers: int) -> tuple[FeedForward, ...]:
    """Experts and the shared one are `intermediate_size` wide, dense layers `intermediate_size_mlp`."""
    activation = activation_of(fields, "silu")
    expert = MlpSpec(fields.integer("intermediate_size"), activation)
    moe = MoeSpec(
        num_experts_of(fields, 16, "num_local_experts", "num_experts"),
        fields.integer("num_experts_per_tok", 1),
        expert,
        expert,
    )
    step = fields.integer("interleave_moe_layer_step", 1)
    sparse = fields.indices("moe_layers", num_layers)
    if sparse is None:
        sparse = frozenset(range(step - 1, num_layers, step))
    dense = MlpSpec(fields.integer("intermediate_size_mlp", 16_384), activation)
    return tuple(moe if i in sparse else dense for i in range(num_layers))
