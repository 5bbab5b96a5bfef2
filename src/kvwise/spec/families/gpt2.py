"""GPT-2 and OPT: layer norms, learned positions, a block without a gate, biases everywhere.

Source: transformers 5.24.0, models/{gpt2,opt}/configuration_*.py and modeling_*.py.
"""

from __future__ import annotations

from typing import Final

from kvwise.spec.families.reading import (
    activation_of,
    notes_of,
    num_layers_of,
    refuse,
    source_dtype_of,
    split_hidden,
    tied_of,
)
from kvwise.spec.fields import Fields
from kvwise.spec.model import AttentionSpec, LayerNormSpec, LayerSpec, ModelSpec, PlainMlpSpec

_OPT_OFFSET: Final = 2  # OPT's table of positions begins two rows early (OPTLearnedPositionalEmbedding)


def read(fields: Fields, top: Fields, model_type: str) -> ModelSpec:
    return _opt(fields, top) if model_type == "opt" else _gpt2(fields, top)


def _gpt2(fields: Fields, top: Fields) -> ModelSpec:
    refuse(fields, "add_cross_attention", "false: only decoders are known", False)
    hidden = fields.integer("n_embd")
    num_layers = num_layers_of(fields, "n_layer")
    heads = fields.integer("n_head", 12)
    head_dim = split_hidden(fields, hidden, heads, "n_embd")
    positions = fields.integer("n_positions", 1024)
    scale = head_dim**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
    by_layer = fields.flag("scale_attn_by_inverse_layer_idx", False)
    mlp = PlainMlpSpec(
        fields.integer("n_inner", 4 * hidden), activation_of(fields, "gelu_new", "activation_function"), bias=True
    )
    return ModelSpec(
        family="gpt2",
        hidden=hidden,
        vocab=fields.integer("vocab_size", 50_257),
        max_positions=positions,
        layers=tuple(
            LayerSpec(
                AttentionSpec(
                    heads, heads, head_dim, scale / (i + 1) if by_layer else scale, None, qkv_bias=True, o_bias=True
                ),
                mlp,
            )
            for i in range(num_layers)
        ),
        norm=LayerNormSpec(fields.number("layer_norm_epsilon", 1e-5)),
        tied_embeddings=tied_of(fields, top, True),
        learned_positions=positions,
        source_dtype=source_dtype_of(fields, top),
        notes=notes_of(fields, top),
    )


def _opt(fields: Fields, top: Fields) -> ModelSpec:
    hidden = fields.integer("hidden_size")
    refuse(fields, "do_layer_norm_before", "true: norms after a block (opt-350m) are not known", True)
    refuse(fields, "word_embed_proj_dim", f"hidden_size, {hidden}: projected embeddings are not known", hidden)
    refuse(fields, "layer_norm_elementwise_affine", "true: norms without weights are not known", True)
    refuse(fields, "_remove_final_layer_norm", "false: models without a last norm are not known", False)
    heads = fields.integer("num_attention_heads", 12)
    head_dim = split_hidden(fields, hidden, heads)
    bias = fields.flag("enable_bias", True)
    attention = AttentionSpec(heads, heads, head_dim, head_dim**-0.5, None, qkv_bias=bias, o_bias=bias)
    mlp = PlainMlpSpec(fields.integer("ffn_dim"), activation_of(fields, "relu", "activation_function"), bias)
    positions = fields.integer("max_position_embeddings", 2048)
    return ModelSpec(
        family="opt",
        hidden=hidden,
        vocab=fields.integer("vocab_size", 50_272),
        max_positions=positions,
        layers=(LayerSpec(attention, mlp),) * num_layers_of(fields),
        norm=LayerNormSpec(1e-5),
        tied_embeddings=tied_of(fields, top, True),
        learned_positions=positions + _OPT_OFFSET,
        source_dtype=source_dtype_of(fields, top),
        notes=notes_of(fields, top),
    )
