"""The attention blocks that families share: projections, optional q/k norms, rotation, attention, output."""

from __future__ import annotations

from kvwise.program.special_builder import SpecialBuilder
from kvwise.spec.model import (
    AttentionSpec,
    LatentAttentionSpec,
    LayerNormSpec,
    ModelSpec,
    NormSpec,
    QkNorm,
    RopeSpec,
    VariedAttentionSpec,
)


def self_attention(b: SpecialBuilder, p: str, x: str, a: AttentionSpec, spec: ModelSpec) -> str:
    """Append layer `p`'s attention on `x` [T, hidden]; returns the slot [T, hidden] before the residual."""
    q = b.matmul(f"{p}.q", x, f"{p}.attn.q.weight", a.q_width, bias=a.qkv_bias)
    k = b.matmul(f"{p}.k", x, f"{p}.attn.k.weight", a.kv_width, bias=a.qkv_bias)
    v = b.matmul(f"{p}.v", x, f"{p}.attn.v.weight", a.kv_width, bias=a.qkv_bias)
    q, k = (_normed_and_rotated(b, p, part, slot, a, spec) for part, slot in (("q", q), ("k", k)))
    heads = b.attention(f"{p}.heads", q, k, v, a)
    return b.matmul(f"{p}.attn_out", heads, f"{p}.attn.o.weight", spec.hidden, bias=a.o_bias)


def varied_attention(b: SpecialBuilder, p: str, x: str, a: VariedAttentionSpec, spec: ModelSpec) -> str:
    """The same for what only some families have. A layer that reads another's K and V projects queries only."""
    q = b.matmul(f"{p}.q", x, f"{p}.attn.q.weight", a.q_width, bias=a.qkv_bias)
    q = _normed_and_rotated(b, p, "q", q, a, spec)
    if a.kv_layer is not None:
        heads = b.borrowed_attention(f"{p}.heads", q, a)
    else:
        k, v = _keys_and_values(b, p, x, a, spec)
        heads = b.varied_attention(f"{p}.heads", q, k, v, a, p)
    if a.output_gate:
        gate = b.matmul(f"{p}.head_gate", x, f"{p}.attn.gate.weight", a.q_width, bias=a.qkv_bias)
        heads = b.gate(f"{p}.heads_gated", heads, gate)
    return b.matmul(f"{p}.attn_out", heads, f"{p}.attn.o.weight", spec.hidden, bias=a.o_bias)


def latent_attention(
    b: SpecialBuilder, p: str, x: str, a: LatentAttentionSpec, spec: ModelSpec, chosen: str | None
) -> tuple[str, str | None]:
    """Multi-head latent attention; returns the slot before the residual, and that of the positions it read.

    `chosen`: the positions that the layer before read, for a layer without an indexer.
    """
    norm = NormSpec(spec.norm.eps)
    queries = x
    if a.q_rank is not None:
        queries = b.matmul(f"{p}.q_latent", x, f"{p}.attn.q_down.weight", a.q_rank, bias=a.bias)
        queries = b.rms_norm(f"{p}.q_latent_normed", queries, f"{p}.attn.q_latent_norm.weight", norm)
    q = b.matmul(f"{p}.q", queries, f"{p}.attn.q.weight", a.num_q_heads * a.qk_dim)
    q = b.rope(f"{p}.q_rotated", q, a.rope, a.qk_dim)
    latent = b.matmul(f"{p}.latent", x, f"{p}.attn.kv_down.weight", a.kv_rank, bias=a.bias)
    latent = b.rms_norm(f"{p}.latent_normed", latent, f"{p}.attn.kv_latent_norm.weight", norm)
    k_rope = b.matmul(f"{p}.k_rope", x, f"{p}.attn.k_rope.weight", a.rope_dim, bias=a.bias)
    k_rope = b.rope(f"{p}.k_rotated", k_rope, a.rope, a.rope_dim)
    layer = b.open_latent_layer(a)
    if a.indexer is not None and a.top_k is not None:
        chosen = _chosen(b, p, x, queries, a, a.top_k, layer)
    heads = b.latent_attention(f"{p}.heads", q, latent, k_rope, chosen, a, p, layer)
    return b.matmul(f"{p}.attn_out", heads, f"{p}.attn.o.weight", spec.hidden, bias=a.bias), chosen


def _chosen(b: SpecialBuilder, p: str, x: str, queries: str, a: LatentAttentionSpec, top_k: int, layer: int) -> str:
    """The positions that this layer's indexer chooses. Its key norm has an eps of its own."""
    indexer = a.indexer
    assert indexer is not None
    q = b.matmul(f"{p}.index_q", queries, f"{p}.attn.index_q.weight", indexer.num_heads * indexer.head_dim)
    q = b.rope(f"{p}.index_q_rotated", q, a.rope, indexer.head_dim)
    k = b.matmul(f"{p}.index_k", x, f"{p}.attn.index_k.weight", indexer.head_dim)
    k = b.layer_norm(f"{p}.index_k_normed", k, f"{p}.attn.index_k_norm.weight", LayerNormSpec(1e-6))
    k = b.rope(f"{p}.index_k_rotated", k, a.rope, indexer.head_dim)
    weights = b.matmul(f"{p}.index_weights", x, f"{p}.attn.index_weights.weight", indexer.num_heads)
    return b.index(f"{p}.chosen", q, k, weights, indexer, top_k, layer)


def _keys_and_values(b: SpecialBuilder, p: str, x: str, a: VariedAttentionSpec, spec: ModelSpec) -> tuple[str, str]:
    k = b.matmul(f"{p}.k", x, f"{p}.attn.k.weight", a.kv_width, bias=a.qkv_bias)
    if a.value_from_key:
        v = k
    else:
        v = b.matmul(f"{p}.v", x, f"{p}.attn.v.weight", a.num_kv_heads * a.value_dim, bias=a.qkv_bias)
    if a.value_norm:
        v = b.plain_rms_norm(f"{p}.v_normed", v, spec.norm.eps, a.value_dim)
    return _normed_and_rotated(b, p, "k", k, a, spec), v


def _normed_and_rotated(b: SpecialBuilder, p: str, part: str, slot: str, a: AttentionSpec, spec: ModelSpec) -> str:
    """`part` is 'q' or 'k'."""
    weight, name = f"{p}.attn.{part}_norm.weight", f"{p}.{part}_normed"
    norm = spec.norm if isinstance(spec.norm, NormSpec) else NormSpec(spec.norm.eps)
    match a.qk_norm:
        case QkNorm.HEAD:
            slot = b.rms_norm(name, slot, weight, norm, a.head_dim)
        case QkNorm.WIDTH:
            slot = b.rms_norm(name, slot, weight, norm)
        case QkNorm.PLAIN:
            slot = b.plain_rms_norm(name, slot, norm.eps, a.head_dim)
        case None:
            pass
    rope: RopeSpec | None = a.rope
    return slot if rope is None else b.rope(f"{p}.{part}_rotated", slot, rope, a.head_dim)
