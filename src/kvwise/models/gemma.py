"""Gemma 2 and 3: scaled embeddings, a norm on both sides of attention and MLP, windowed and full layers mixed.

Sources: Gemma 2 (arXiv 2408.00118) §2; Gemma 3 (arXiv 2503.19786) §2. Which layers have a window, soft caps and
q/k norms are fields of the spec.
"""

from __future__ import annotations

from kvwise.models.head import language_head
from kvwise.models.mixer import Mixers
from kvwise.models.mlp import feed_forward
from kvwise.program.ir import Program
from kvwise.program.special_builder import SpecialBuilder
from kvwise.spec.model import ModelSpec


def program(spec: ModelSpec) -> Program:
    b = SpecialBuilder()
    mixers = Mixers(b, spec)
    x = b.embed("x", "embed.weight", spec.vocab, spec.hidden, spec.embedding_scale)
    for i, layer in enumerate(spec.layers):
        p = f"layers.{i}"
        h = b.norm(f"{p}.attn_in", x, f"{p}.attn_norm.weight", spec.norm)
        h = mixers.append(p, h, layer.mixer)
        h = b.norm(f"{p}.attn_post", h, f"{p}.attn_post_norm.weight", spec.norm)
        x = b.add(f"{p}.x_attn", x, h)
        if layer.mlp is not None:
            h = b.norm(f"{p}.mlp_in", x, f"{p}.mlp_norm.weight", spec.norm)
            h = feed_forward(b, p, h, layer.mlp, spec.hidden)
            h = b.norm(f"{p}.mlp_post", h, f"{p}.mlp_post_norm.weight", spec.norm)
            x = b.add(f"{p}.x_mlp", x, h)
    return b.build(language_head(b, x, spec))
