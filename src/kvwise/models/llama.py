"""Llama and its kin (Mistral, Qwen2, Qwen3): norm before attention and before the MLP, residual after each.

Sources: Llama 2 (arXiv 2307.09288) §2.2; Mistral 7B (arXiv 2310.06825) for windows; Qwen2 (arXiv 2407.10671) for
the q/k/v biases; Qwen3 (arXiv 2505.09388) for the q/k norms. All of these are fields of the spec.
"""

from __future__ import annotations

from kvwise.models.attention import self_attention
from kvwise.models.head import language_head
from kvwise.models.mlp import gated_mlp
from kvwise.program.builder import ProgramBuilder
from kvwise.program.ir import Program
from kvwise.spec.model import ModelSpec


def program(spec: ModelSpec) -> Program:
    b = ProgramBuilder()
    x = b.embed("x", "embed.weight", spec.vocab, spec.hidden, spec.embedding_scale)
    for i, layer in enumerate(spec.layers):
        p = f"layers.{i}"
        h = b.rms_norm(f"{p}.attn_in", x, f"{p}.attn_norm.weight", spec.norm)
        h = self_attention(b, p, h, layer.attention, spec)
        x = b.add(f"{p}.x_attn", x, h)
        h = b.rms_norm(f"{p}.mlp_in", x, f"{p}.mlp_norm.weight", spec.norm)
        h = gated_mlp(b, p, h, layer.mlp, spec.hidden)
        x = b.add(f"{p}.x_mlp", x, h)
    return b.build(language_head(b, x, spec))
