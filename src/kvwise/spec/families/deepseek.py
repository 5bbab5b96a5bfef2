"""DeepSeek V2, V3 and V3.2, Kimi K2 and GLM-5: multi-head latent attention, experts after the first layers.

Layers of multi-token prediction (num_nextn_predict_layers) are not part of the model that answers and not counted;
nor are the router's correction biases, which are buffers. Kimi K2 is DeepSeek V3 under a model_type of its own
(MoonshotAI/Kimi-K2, docs/deploy_guidance.md). Source: transformers 5.24.0,
models/{deepseek_v2,deepseek_v3,deepseek_v32,glm_moe_dsa}/configuration_*.py and modeling_*.py.
"""

from __future__ import annotations

from typing import Final

from kvwise.frozen import dataclass
from kvwise.spec.families.moe import dense_then_sparse, num_experts_of, shared_experts
from kvwise.spec.families.reading import (
    FULL,
    INDEXED,
    activation_of,
    notes_of,
    num_layers_of,
    read_layer_kinds,
    refuse,
    source_dtype_of,
    tied_of,
)
from kvwise.spec.fields import Fields
from kvwise.spec.hf_rope import RopeDefaults, latent_softmax_factor, read_rope
from kvwise.spec.model import (
    FeedForward,
    IndexerSpec,
    LatentAttentionSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    NormSpec,
)

_SPARSE: Final = "deepseek_sparse_attention"


@dataclass(frozen=True, slots=True)
class _Defaults:
    """Class defaults. index_heads None: attention reads every position."""

    family: str
    vocab: int
    heads: int
    max_positions: int
    eps: float
    nope_dim: int
    v_head_dim: int
    q_rank: int
    dense_layers: int
    experts: int
    top_k: int | None
    shared: int
    moe_intermediate: int
    index_heads: int | None = None


_FAMILIES: Final = {
    "deepseek_v2": _Defaults("deepseek_v2", 102_400, 32, 2048, 1e-6, 128, 128, 1536, 0, 64, None, 2, 1407),
    "deepseek_v3": _Defaults("deepseek_v3", 129_280, 128, 4096, 1e-6, 128, 128, 1536, 3, 256, 8, 1, 2048),
    "kimi_k2": _Defaults("deepseek_v3", 129_280, 128, 4096, 1e-6, 128, 128, 1536, 3, 256, 8, 1, 2048),
    "deepseek_v32": _Defaults("deepseek_v32", 129_280, 128, 163_840, 1e-6, 128, 128, 1536, 3, 256, 8, 1, 2048, 64),
    "glm_moe_dsa": _Defaults("glm_moe_dsa", 154_880, 64, 202_752, 1e-5, 192, 256, 2048, 3, 256, 8, 1, 2048, 32),
}


def read(fields: Fields, top: Fields, model_type: str) -> ModelSpec:
    family = _FAMILIES[model_type]
    num_layers = num_layers_of(fields)
    positions = fields.integer("max_position_embeddings", family.max_positions)
    kind = _kind(fields, family)
    read_layer_kinds(fields, (kind,) * num_layers, family.family, known=(kind,), mixes=False)
    attention = _attention(fields, family, num_layers, positions)
    blocks = _blocks(fields, family, num_layers)
    return ModelSpec(
        family=family.family,
        hidden=fields.integer("hidden_size"),
        vocab=fields.integer("vocab_size", family.vocab),
        max_positions=positions,
        layers=tuple(LayerSpec(a, f) for a, f in zip(attention, blocks, strict=True)),
        norm=NormSpec(fields.number("rms_norm_eps", family.eps)),
        tied_embeddings=tied_of(fields, top, False),
        source_dtype=source_dtype_of(fields, top),
        notes=notes_of(fields, top),
    )


def _kind(fields: Fields, family: _Defaults) -> str:
    """What layer_types calls every layer; files of GLM 5.2 have a name of their own for it."""
    if family.index_heads is None:
        return FULL
    stated = fields.raw("layer_types")
    return _SPARSE if isinstance(stated, (list, tuple)) and _SPARSE in stated else INDEXED


def _attention(fields: Fields, family: _Defaults, num_layers: int, positions: int) -> tuple[LatentAttentionSpec, ...]:
    heads = fields.integer("num_attention_heads", family.heads)
    refuse(fields, "num_key_value_heads", f"{heads}: heads of a latent are never shared", heads)
    rope_dim = fields.integer("qk_rope_head_dim", 64)
    nope_dim = fields.integer("qk_nope_head_dim", family.nope_dim)
    no_q_latent = fields.states("q_lora_rank") and "q_lora_rank" not in fields
    top_k = fields.integer("index_topk", 2048) if family.index_heads else None
    indexers = _indexers(fields, family, num_layers)

    def attention(indexed: bool) -> LatentAttentionSpec:
        return LatentAttentionSpec(
            num_q_heads=heads,
            nope_dim=nope_dim,
            rope_dim=rope_dim,
            v_head_dim=fields.integer("v_head_dim", family.v_head_dim),
            kv_rank=fields.integer("kv_lora_rank", 512),
            q_rank=None if no_q_latent else fields.integer("q_lora_rank", family.q_rank),
            scale=(nope_dim + rope_dim) ** -0.5 * latent_softmax_factor(fields),
            rope=read_rope(fields, FULL, rope_dim, positions, RopeDefaults()),
            bias=fields.flag("attention_bias", False),
            indexer=_indexer(fields, family) if indexed else None,
            top_k=top_k,
        )

    distinct = {indexed: attention(indexed) for indexed in dict.fromkeys(indexers)}
    return tuple(distinct[indexed] for indexed in indexers)


def _indexer(fields: Fields, family: _Defaults) -> IndexerSpec:
    return IndexerSpec(fields.integer("index_n_heads", family.index_heads or 1), fields.integer("index_head_dim", 128))


def _indexers(fields: Fields, family: _Defaults, num_layers: int) -> tuple[bool, ...]:
    """Which layers choose positions themselves; in GLM-5's successors others read the last layer's choice.

    As a list (indexer_types), as a text of F and S (index_topk_pattern), or by a period and an offset.
    """
    if family.index_heads is None:
        return (False,) * num_layers
    if family.family != "glm_moe_dsa":
        return (True,) * num_layers
    stated = fields.raw("indexer_types") or fields.raw("index_topk_pattern")
    if stated is None:
        period = fields.integer("index_topk_freq", 1)
        offset = fields.integer("index_skip_topk_offset", 2, low=0)
        return tuple(max(i - offset + 1, 0) % period == 0 for i in range(num_layers))
    name = "indexer_types" if "indexer_types" in fields else "index_topk_pattern"
    modes = {"F": True, "S": False, "full": True, "shared": False}
    if (
        not isinstance(stated, (str, list, tuple))
        or len(stated) != num_layers
        or any(not isinstance(m, str) or m not in modes for m in stated)
    ):
        raise fields.wrong(name, f"{num_layers} times full or shared")
    if not modes[stated[0]]:
        raise fields.wrong(name, "full in the first layer, which has no other to read from")
    return tuple(modes[mode] for mode in stated)


def _blocks(fields: Fields, family: _Defaults, num_layers: int) -> tuple[FeedForward, ...]:
    activation = activation_of(fields, "silu")
    bias = fields.flag("mlp_bias", False)
    if bias:
        raise fields.wrong("mlp_bias", "false: biases of dense layers beside experts without are not known")
    refuse(fields, "moe_layer_freq", "1: experts in every layer after the dense ones", 1)
    width = fields.integer("moe_intermediate_size", family.moe_intermediate)
    if family.top_k is None:
        top_k = fields.integer("num_experts_per_tok")
    else:
        top_k = fields.integer("num_experts_per_tok", family.top_k)
    moe = MoeSpec(
        num_experts_of(fields, family.experts, "n_routed_experts", "num_local_experts", "num_experts"),
        top_k,
        MlpSpec(width, activation),
        shared_experts(fields, width, activation, family.shared),
    )
    dense = MlpSpec(fields.integer("intermediate_size"), activation)
    return dense_then_sparse(fields, num_layers, dense, moe, family.dense_layers)
