"""GPT-NeoX, Phi and Falcon: layer norms, a block without a gate, attention and block beside each other.

Source: transformers 5.24.0, models/{gpt_neox,phi,falcon}/configuration_*.py and modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvwise.spec.families.reading import (
    FULL,
    activation_of,
    notes_of,
    num_kv_heads_of,
    num_layers_of,
    refuse,
    source_dtype_of,
    split_hidden,
    tied_of,
)
from kvwise.spec.fields import Fields
from kvwise.spec.hf_rope import RopeDefaults, read_rope
from kvwise.spec.model import AttentionSpec, LayerNormSpec, LayerSpec, ModelSpec, PlainMlpSpec, Residual


def read(fields: Fields, top: Fields, model_type: str) -> ModelSpec:
    return _FAMILIES[model_type](fields, top)


def _gpt_neox(fields: Fields, top: Fields) -> ModelSpec:
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads", 64)
    head_dim = split_hidden(fields, hidden, heads)
    positions = fields.integer("max_position_embeddings", 2048)
    # The class writes theta and the rotating part under names of its own.
    theta = fields.number("rotary_emb_base", 10_000.0, low=1.0)
    part = fields.number("rotary_pct", 0.25)
    rope = read_rope(fields, FULL, head_dim, positions, RopeDefaults(theta, rotary_factor=part))
    bias = fields.flag("attention_bias", True)
    attention = AttentionSpec(heads, heads, head_dim, head_dim**-0.5, rope, qkv_bias=bias, o_bias=bias)
    mlp = PlainMlpSpec(fields.integer("intermediate_size"), activation_of(fields, "gelu"), bias=True)
    parallel = fields.flag("use_parallel_residual", True)
    return ModelSpec(
        family="gpt_neox",
        hidden=hidden,
        vocab=fields.integer("vocab_size", 50_432),
        max_positions=positions,
        layers=(LayerSpec(attention, mlp),) * num_layers_of(fields),
        norm=LayerNormSpec(fields.number("layer_norm_eps", 1e-5)),
        tied_embeddings=tied_of(fields, top, False),
        residual=Residual.PARALLEL if parallel else Residual.SEQUENTIAL,
        source_dtype=source_dtype_of(fields, top),
        notes=notes_of(fields, top),
    )


def _phi(fields: Fields, top: Fields) -> ModelSpec:
    refuse(fields, "qk_layernorm", "false: layer norms of queries and keys are not known", False)
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads", 32)
    head_dim = split_hidden(fields, hidden, heads)
    positions = fields.integer("max_position_embeddings", 2048)
    rope = read_rope(fields, FULL, head_dim, positions, RopeDefaults(rotary_factor=0.5))
    kv_heads = num_kv_heads_of(fields, None, heads)
    attention = AttentionSpec(heads, kv_heads, head_dim, head_dim**-0.5, rope, qkv_bias=True, o_bias=True)
    mlp = PlainMlpSpec(fields.integer("intermediate_size"), activation_of(fields, "gelu_new"), bias=True)
    return ModelSpec(
        family="phi",
        hidden=hidden,
        vocab=fields.integer("vocab_size", 51_200),
        max_positions=positions,
        layers=(LayerSpec(attention, mlp),) * num_layers_of(fields),
        norm=LayerNormSpec(fields.number("layer_norm_eps", 1e-5)),
        tied_embeddings=tied_of(fields, top, False),
        head_bias=True,
        residual=Residual.PARALLEL_ONE_NORM,
        source_dtype=source_dtype_of(fields, top),
        notes=notes_of(fields, top),
    )


def _falcon(fields: Fields, top: Fields) -> ModelSpec:
    refuse(fields, "alibi", "false: position biases (ALiBi) are not known", False)
    hidden = fields.integer("n_embed" if "n_embed" in fields else "hidden_size")
    heads = fields.integer("num_attention_heads", 71)
    head_dim = split_hidden(fields, hidden, heads)
    positions = fields.integer("max_position_embeddings", 2048)
    new = fields.flag("new_decoder_architecture", False)
    bias = fields.flag("bias", False)
    attention = AttentionSpec(
        heads, _falcon_kv_heads(fields, heads, new), head_dim, head_dim**-0.5,
        read_rope(fields, FULL, head_dim, positions, RopeDefaults()), qkv_bias=bias, o_bias=bias,
    )  # fmt: skip
    mlp = PlainMlpSpec(fields.integer("ffn_hidden_size", 4 * hidden), activation_of(fields, "gelu", "activation"), bias)
    return ModelSpec(
        family="falcon",
        hidden=hidden,
        vocab=fields.integer("vocab_size", 65_024),
        max_positions=positions,
        layers=(LayerSpec(attention, mlp),) * num_layers_of(fields),
        norm=LayerNormSpec(fields.number("layer_norm_epsilon", 1e-5)),
        tied_embeddings=tied_of(fields, top, True),
        residual=_falcon_residual(fields, new),
        source_dtype=source_dtype_of(fields, top),
        notes=notes_of(fields, top),
    )


def _falcon_kv_heads(fields: Fields, heads: int, new: bool) -> int:
    """num_kv_heads counts in the new architecture, or without multi-query; with it there is one."""
    if fields.flag("multi_query", True) and not new:
        return 1
    if not new:
        refuse(fields, "num_kv_heads", f"{heads}: this architecture has one KV head for each query head", heads)
        return heads
    return fields.integer("num_kv_heads", heads)


def _falcon_residual(fields: Fields, new: bool) -> Residual:
    """Two norms side by side are the new architecture's; the old one with parallel_attn has one."""
    if not new:
        refuse(fields, "num_ln_in_parallel_attn", "1 or null: two norms are the new architecture's", 1)
    norms = fields.integer("num_ln_in_parallel_attn", 2 if new else 1, high=2)
    if new or fields.flag("parallel_attn", True):
        return Residual.PARALLEL if norms == 2 else Residual.PARALLEL_ONE_NORM
    return Residual.SEQUENTIAL


_FAMILIES: Final[dict[str, Callable[[Fields, Fields], ModelSpec]]] = {
    "gpt_neox": _gpt_neox,
    "phi": _phi,
    "falcon": _falcon,
}
