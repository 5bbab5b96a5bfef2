"""The attention block that families share: projections, optional q/k norms, rotation, attention, output."""

from __future__ import annotations

from kvwise.program.builder import ProgramBuilder
from kvwise.spec.model import AttentionSpec, ModelSpec


def self_attention(b: ProgramBuilder, p: str, x: str, a: AttentionSpec, spec: ModelSpec) -> str:
    """Append layer `p`'s attention on `x` [T, hidden]; returns the slot [T, hidden] before the residual."""
    q = b.matmul(f"{p}.q", x, f"{p}.attn.q.weight", a.q_width, bias=a.qkv_bias)
    k = b.matmul(f"{p}.k", x, f"{p}.attn.k.weight", a.kv_width, bias=a.qkv_bias)
    v = b.matmul(f"{p}.v", x, f"{p}.attn.v.weight", a.kv_width, bias=a.qkv_bias)
    if a.qk_norm:
        q = b.rms_norm(f"{p}.q_normed", q, f"{p}.attn.q_norm.weight", spec.norm, a.head_dim)
        k = b.rms_norm(f"{p}.k_normed", k, f"{p}.attn.k_norm.weight", spec.norm, a.head_dim)
    if a.rope is not None:
        q = b.rope(f"{p}.q_rotated", q, a.rope, a.head_dim)
        k = b.rope(f"{p}.k_rotated", k, a.rope, a.head_dim)
    heads = b.attention(f"{p}.heads", q, k, v, a)
    return b.matmul(f"{p}.attn_out", heads, f"{p}.attn.o.weight", spec.hidden, bias=a.o_bias)
