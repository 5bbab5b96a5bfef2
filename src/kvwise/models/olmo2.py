"""OLMo 2: no norm before attention and MLP, one after each, before the residual is added.

Source: OLMo 2 (arXiv 2501.00656) §2.1.
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
    x = b.embed("x", "embed.weight", spec.vocab, spec.hidden)
    for i, layer in enumerate(spec.layers):
        p = f"layers.{i}"
        h = mixers.append(p, x, layer.mixer)
        h = b.norm(f"{p}.attn_post", h, f"{p}.attn_post_norm.weight", spec.norm)
        x = b.add(f"{p}.x_attn", x, h)
        if layer.mlp is not None:
            h = feed_forward(b, p, x, layer.mlp, spec.hidden)
            h = b.norm(f"{p}.mlp_post", h, f"{p}.mlp_post_norm.weight", spec.norm)
            x = b.add(f"{p}.x_mlp", x, h)
    return b.build(language_head(b, x, spec))
