"""MiMo-V2: K wider than V; windowed layers with sinks and twice the KV heads; experts in all layers but the first.

Files written for Xiaomi's own code name some facts differently (hybrid_layer_pattern, moe_layer_freq, swa_*,
layernorm_epsilon); both forms are read. Source: transformers 5.24.0,
models/mimo_v2_flash/configuration_mimo_v2_flash.py and modeling_mimo_v2_flash.py; sglang, models/mimo_v2_flash.py.
"""

from __future__ import annotations

from kvwise.spec.families.moe import num_experts_of
from kvwise.spec.families.reading import (
    FULL,
    SLIDING,
    activation_of,
    head_dim_of,
    notes_of,
    num_kv_heads_of,
    num_layers_of,
    read_layer_kinds,
    refuse,
    source_dtype_of,
    tied_of,
)
from kvwise.spec.fields import Fields
from kvwise.spec.hf_rope import RopeDefaults, read_rope
from kvwise.spec.model import FeedForward, LayerSpec, MlpSpec, ModelSpec, MoeSpec, NormSpec, VariedAttentionSpec


def read(fields: Fields, top: Fields, model_type: str) -> ModelSpec:
    num_layers = num_layers_of(fields)
    hidden = fields.integer("hidden_size")
    positions = fields.integer("max_position_embeddings", 131_072)
    kinds = read_layer_kinds(fields, _pattern(fields, num_layers), "mimo_v2_flash", known=(FULL, SLIDING))
    attention = {kind: _attention(fields, kind, hidden, positions) for kind in dict.fromkeys(kinds)}
    blocks = _blocks(fields, num_layers)
    return ModelSpec(
        family="mimo_v2_flash",
        hidden=hidden,
        vocab=fields.integer("vocab_size", 152_576),
        max_positions=positions,
        layers=tuple(LayerSpec(attention[kind], block) for kind, block in zip(kinds, blocks, strict=True)),
        norm=NormSpec(fields.number("layernorm_epsilon" if "layernorm_epsilon" in fields else "rms_norm_eps", 1e-5)),
        tied_embeddings=tied_of(fields, top, False),
        source_dtype=source_dtype_of(fields, top),
        notes=notes_of(fields, top),
    )


def _pattern(fields: Fields, num_layers: int) -> tuple[str, ...]:
    """`hybrid_layer_pattern` has 1 where a layer has a window; else the first and every sixth have none."""
    flags = fields.bits("hybrid_layer_pattern", num_layers)
    if flags is not None:
        return tuple(SLIDING if windowed else FULL for windowed in flags)
    return tuple(FULL if i == 0 or not (i + 1) % 6 else SLIDING for i in range(num_layers))


def _attention(fields: Fields, kind: str, hidden: int, positions: int) -> VariedAttentionSpec:
    windowed = kind == SLIDING
    heads = fields.integer("num_attention_heads", 64)
    head_dim = head_dim_of(fields, hidden, heads, 192)
    v_head_dim = fields.integer("v_head_dim", 128)
    kv_heads = num_kv_heads_of(fields, 4, heads)
    for name, value in (("swa_num_attention_heads", heads), ("swa_head_dim", head_dim), ("swa_v_head_dim", v_head_dim)):
        refuse(fields, name, f"{value}, as in the other layers", value)
    defaults = RopeDefaults(5_000_000.0, 10_000.0, "swa_rope_theta", rotary_factor=0.334)
    return VariedAttentionSpec(
        num_q_heads=heads,
        num_kv_heads=fields.integer("swa_num_key_value_heads", 2 * kv_heads) if windowed else kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=read_rope(fields, kind, head_dim, positions, defaults),
        window=_window(fields) if windowed else None,
        qkv_bias=fields.flag("attention_bias", False),
        v_head_dim=v_head_dim,
        sinks=fields.flag("add_swa_attention_sink_bias", True)
        if windowed
        else fields.flag("add_full_attention_sink_bias", False),
    )


def _window(fields: Fields) -> int:
    """`sliding_window_size` counts the positions before the query's own."""
    if "sliding_window_size" in fields:
        return fields.integer("sliding_window_size") + 1
    return fields.integer("sliding_window", 129)


def _blocks(fields: Fields, num_layers: int) -> tuple[FeedForward, ...]:
    activation = activation_of(fields, "silu")
    refuse(fields, "n_shared_experts", "0 or null: MiMo-V2 has no shared expert", 0)
    dense = MlpSpec(fields.integer("intermediate_size"), activation)
    moe = MoeSpec(
        num_experts_of(fields, 256, "n_routed_experts", "num_local_experts"),
        fields.integer("num_experts_per_tok", 8),
        MlpSpec(fields.integer("moe_intermediate_size", 2048), activation),
    )
    flags = fields.bits("moe_layer_freq", num_layers)
    stated = fields.choices("mlp_layer_types", num_layers, ("dense", "sparse"))
    if flags is None and stated is not None:
        flags = tuple(kind == "sparse" for kind in stated)
    return tuple(moe if sparse else dense for sparse in flags or tuple(i > 0 for i in range(num_layers)))
