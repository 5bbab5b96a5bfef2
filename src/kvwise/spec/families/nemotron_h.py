"""Nemotron-H: each layer is one of Mamba-2, attention without rotation, experts, or a dense block; none has two.

Source: transformers 5.24.0, models/nemotron_h/configuration_nemotron_h.py and modeling_nemotron_h.py.
"""

from __future__ import annotations

from typing import Final

from kvwise.errors import SpecError
from kvwise.spec.families.moe import num_experts_of
from kvwise.spec.families.reading import (
    activation_of,
    head_dim_of,
    notes_of,
    num_kv_heads_of,
    refuse,
    source_dtype_of,
)
from kvwise.spec.fields import Fields
from kvwise.spec.model import (
    MAX_LAYERS,
    AttentionSpec,
    LayerSpec,
    Mamba2Spec,
    ModelSpec,
    MoeSpec,
    NormSpec,
    PlainMlpSpec,
)

_LETTERS: Final = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
_OLD_NAMES: Final = {"mamba": "linear_attention", "attention": "full_attention"}


def read(fields: Fields, top: Fields, model_type: str) -> ModelSpec:
    hidden = fields.integer("hidden_size")
    refuse(fields, "sliding_window", "null: windows are not known in this family")
    refuse(fields, "tie_word_embeddings", "false: this family's head is always its own", False)
    kinds = _kinds(fields)
    layer = {
        "linear_attention": lambda: LayerSpec(_mamba(fields), None),
        "full_attention": lambda: LayerSpec(_attention(fields, hidden), None),
        "moe": lambda: LayerSpec(None, _experts(fields)),
        "mlp": lambda: LayerSpec(None, _mlp(fields, fields.integer("intermediate_size"))),
    }
    built = {kind: layer[kind]() for kind in dict.fromkeys(kinds)}
    return ModelSpec(
        family="nemotron_h",
        hidden=hidden,
        vocab=fields.integer("vocab_size", 131_072),
        max_positions=fields.integer("max_position_embeddings", 4096),
        layers=tuple(built[kind] for kind in kinds),
        norm=NormSpec(fields.number("layer_norm_epsilon", 1e-5)),
        tied_embeddings=False,
        source_dtype=source_dtype_of(fields, top),
        notes=notes_of(fields, top),
    )


def _kinds(fields: Fields) -> tuple[str, ...]:
    """`layers_block_type` as a list, or `hybrid_override_pattern` as letters. Their length is the number of layers."""
    stated, name = fields.raw("layers_block_type"), "layers_block_type"
    if stated is None:
        stated, name = fields.text("hybrid_override_pattern"), "hybrid_override_pattern"
    names = _LETTERS if isinstance(stated, str) else {k: k for k in _LETTERS.values()} | _OLD_NAMES
    if not isinstance(stated, (str, list, tuple)) or not 1 <= len(stated) <= MAX_LAYERS:
        raise fields.wrong(name, f"1 to {MAX_LAYERS} layers")
    for kind in stated:
        if not isinstance(kind, str) or kind not in names:
            raise SpecError(f"{fields.name_of(name)} has {str(kind)[:20]!r}", expected=f"one of {', '.join(names)}")
    num_layers = fields.optional_integer("num_hidden_layers")
    if num_layers is not None and num_layers != len(stated):
        raise fields.wrong("num_hidden_layers", f"{len(stated)}, as {name} says")
    return tuple(names[kind] for kind in stated)


def _mamba(fields: Fields) -> Mamba2Spec:
    old = {"n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv"}
    name = {new: before if before in fields else new for new, before in old.items()}
    return Mamba2Spec(
        num_heads=fields.integer("mamba_num_heads", 128),
        head_dim=fields.integer("mamba_head_dim", 64),
        state_dim=fields.integer("ssm_state_size", 128),
        num_groups=fields.integer(name["n_groups"], 8),
        conv_kernel=fields.integer(name["conv_kernel"], 4),
        conv_bias=fields.flag("mamba_conv_bias" if "mamba_conv_bias" in fields else "use_conv_bias", True),
        bias=fields.flag("use_bias", False),
    )


def _attention(fields: Fields, hidden: int) -> AttentionSpec:
    """No biases, whatever attention_bias says: the model's projections never have them."""
    heads = fields.integer("num_attention_heads", 32)
    head_dim = head_dim_of(fields, hidden, heads, 128)
    return AttentionSpec(heads, num_kv_heads_of(fields, 8, heads), head_dim, head_dim**-0.5, None)


def _mlp(fields: Fields, width: int) -> PlainMlpSpec:
    return PlainMlpSpec(width, activation_of(fields, "relu2", "mlp_hidden_act"), fields.flag("mlp_bias", False))


def _experts(fields: Fields) -> MoeSpec:
    """The shared block is there whatever n_shared_experts says; experts have no biases."""
    routed = PlainMlpSpec(
        fields.integer("moe_intermediate_size", 7688), activation_of(fields, "relu2", "mlp_hidden_act")
    )
    latent = fields.optional_integer("moe_latent_size")
    if latent is not None and fields.flag("mlp_bias", False):
        raise fields.wrong("mlp_bias", "false beside moe_latent_size: biases of latent projections are not known")
    return MoeSpec(
        num_experts_of(fields, 8, "n_routed_experts", "num_local_experts"),
        fields.integer("num_experts_per_tok", 2),
        routed,
        _mlp(fields, fields.integer("moe_shared_expert_intermediate_size", 7688)),
        latent=latent,
    )
