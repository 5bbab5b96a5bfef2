"""Gemma 4: windows in five of six layers, wide global heads whose values may be their keys, shared K and V, experts
beside a dense block, and a second embedding for every layer.

Source: transformers 5.24.0, models/gemma4/configuration_gemma4.py and modeling_gemma4.py.
"""

from __future__ import annotations

from dataclasses import replace

from kvwise.spec.families.decoder import gemma_embedding_scale
from kvwise.spec.families.reading import (
    FULL,
    SLIDING,
    activation_of,
    every,
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
from kvwise.spec.model import (
    DenseAndMoeSpec,
    FeedForward,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    NormSpec,
    PerLayerInputSpec,
    QkNorm,
    RopeScaling,
    RopeScalingKind,
    RopeSpec,
    VariedAttentionSpec,
)


def read(fields: Fields, top: Fields, model_type: str) -> ModelSpec:
    refuse(fields, "use_bidirectional_attention", "null or vision: only causal text is known", "vision")
    hidden = fields.integer("hidden_size")
    num_layers = num_layers_of(fields)
    positions = fields.integer("max_position_embeddings", 131_072)
    kinds = read_layer_kinds(fields, _last_is_full(every(6, num_layers, SLIDING)), "gemma4", known=(FULL, SLIDING))
    kinds = _last_is_full(kinds)
    owners = _kv_owners(fields, kinds)
    heads = _heads_by_layer(fields, kinds)
    attention = {key: _attention(fields, *key, positions) for key in dict.fromkeys(zip(kinds, heads, strict=True))}
    mixers = tuple(
        replace(attention[kind, own], kv_layer=owner) for kind, own, owner in zip(kinds, heads, owners, strict=True)
    )
    blocks = tuple(_block(fields, wide=owner is not None) for owner in owners)
    per_layer, note = _per_layer_input(fields)
    return ModelSpec(
        family="gemma4",
        hidden=hidden,
        vocab=fields.integer("vocab_size", 262_144),
        max_positions=positions,
        layers=tuple(LayerSpec(m, f) for m, f in zip(mixers, blocks, strict=True)),
        norm=NormSpec(fields.number("rms_norm_eps", 1e-6)),
        tied_embeddings=tied_of(fields, top, True),
        embedding_scale=gemma_embedding_scale(hidden),
        post_norms=True,
        logit_softcap=softcap_of(fields, "final_logit_softcapping", None),
        per_layer_input=per_layer,
        source_dtype=source_dtype_of(fields, top),
        notes=notes_of(fields, top, *note),
    )


def _last_is_full(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The last layer sees everything, whatever the pattern says."""
    return (*kinds[:-1], FULL)


def _heads_by_layer(fields: Fields, kinds: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """(KV heads, head_dim) of each layer.

    Layers that see everything have heads of global_head_dim, and where V comes from K num_global_key_value_heads.
    transformers 5 saves that as per_layer_config, {"05": {"head_dim": 512}, ...}, and the global fields no more.
    """
    own = (num_kv_heads_of(fields, 4, fields.integer("num_attention_heads", 8)), fields.integer("head_dim", 256))
    stated = fields.mapping("per_layer_config")
    if stated is not None:
        return _stated_heads(stated, len(kinds), own)
    kv_heads = own[0]
    if fields.flag("attention_k_eq_v", False):
        kv_heads = fields.optional_integer("num_global_key_value_heads") or kv_heads
    wide = (kv_heads, fields.integer("global_head_dim", 512)) if FULL in kinds else own
    return tuple(wide if kind == FULL else own for kind in kinds)


def _stated_heads(stated: Fields, num_layers: int, own: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    heads = [own] * num_layers
    for name in stated.names():
        layer = stated.mapping(name)
        if layer is None or not name.isdecimal() or int(name) >= num_layers:
            raise stated.wrong(name, f"an object for a layer, 0 to {num_layers - 1}")
        if unknown := set(layer.names()) - {"head_dim", "num_key_value_heads"}:
            raise layer.wrong(sorted(unknown)[0], "nothing but head_dim and num_key_value_heads for a layer of its own")
        heads[int(name)] = (layer.integer("num_key_value_heads", own[0]), layer.integer("head_dim", own[1]))
    return tuple(heads)


def _attention(fields: Fields, kind: str, own: tuple[int, int], positions: int) -> VariedAttentionSpec:
    """own: the layer's KV heads and head_dim."""
    heads = fields.integer("num_attention_heads", 8)
    kv_heads, head_dim = own
    value_from_key = kind == FULL and fields.flag("attention_k_eq_v", False)
    bias = fields.flag("attention_bias", False)
    return VariedAttentionSpec(
        num_q_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=1.0,
        rope=_rope(fields, kind, head_dim, positions),
        window=fields.integer("sliding_window", 512) if kind == SLIDING else None,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=QkNorm.HEAD,
        value_from_key=value_from_key,
        value_norm=True,
    )


def _rope(fields: Fields, kind: str, head_dim: int, positions: int) -> RopeSpec:
    """Where no rotation is stated, the class rotates a quarter of global heads proportionally."""
    if "rope_parameters" in fields:
        defaults = RopeDefaults(1_000_000.0, 10_000.0, rotary_factor=1.0, more_kinds=("proportional",))
        return read_rope(fields, kind, head_dim, positions, defaults)
    fields.defaulted.append("rope_parameters")
    if kind == SLIDING:
        return RopeSpec(10_000.0, head_dim)
    scaling = RopeScaling(RopeScalingKind.PROPORTIONAL, exponent_dim=head_dim)
    return RopeSpec(1_000_000.0, 2 * (head_dim // 8), scaling)


def _kv_owners(fields: Fields, kinds: tuple[str, ...]) -> tuple[int | None, ...]:
    """The last `num_kv_shared_layers` read K and V of the last layer of their kind before them."""
    first_shared = len(kinds) - fields.integer("num_kv_shared_layers", 0, low=0)
    owners: list[int | None] = []
    for index, kind in enumerate(kinds):
        own = [i for i in range(max(first_shared, 0)) if kinds[i] == kind]
        if index >= first_shared and not own:
            raise fields.wrong("num_kv_shared_layers", f"few enough that a layer of {kind} keeps K and V")
        owners.append(own[-1] if index >= first_shared else None)
    return tuple(owners)


def _block(fields: Fields, *, wide: bool) -> FeedForward:
    """wide: a layer that keeps no K and V of its own may have a block of twice the width instead."""
    activation = activation_of(fields, "gelu_pytorch_tanh", "hidden_activation")
    double = wide and fields.flag("use_double_wide_mlp", False)
    dense = MlpSpec(fields.integer("intermediate_size") * (2 if double else 1), activation)
    if not fields.flag("enable_moe_block", False):
        return dense
    expert = MlpSpec(fields.integer("moe_intermediate_size"), activation)
    return DenseAndMoeSpec(dense, MoeSpec(fields.integer("num_experts"), fields.integer("top_k_experts"), expert))


def _per_layer_input(fields: Fields) -> tuple[PerLayerInputSpec | None, tuple[str, ...]]:
    """The second embedding, and a note where its absence is taken from the kind of model.

    The class default is 256, the width of E2B and E4B. No Gemma 4 with experts has a second embedding and their files
    state 0, so a config with experts that does not mention one is taken at its word.
    """
    name = "hidden_size_per_layer_input"
    if name not in fields and fields.flag("enable_moe_block", False):
        return None, (f"{name} is not stated: 0, as every published Gemma 4 with experts has it",)
    width = fields.integer(name, 256, low=0)
    if width == 0:
        return None, ()
    return PerLayerInputSpec(fields.integer("vocab_size_per_layer_input", 262_144), width), ()
