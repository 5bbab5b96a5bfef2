"""Llama and its kin: norm before the mixer and before the feed-forward block, residual after each.

What the mixer and the block are, layer by layer, is for the spec to say: attention with or without windows and
biases, latents, delta nets, experts. Sources: Llama 2 (arXiv 2307.09288) §2.2; Mistral 7B (arXiv 2310.06825) for
windows; Qwen2 (arXiv 2407.10671) for the q/k/v biases; Qwen3 (arXiv 2505.09388) for the q/k norms; Mixtral (arXiv
2401.04088); DeepSeek-V2 and V3 (arXiv 2405.04434, 2412.19437); gpt-oss (arXiv 2508.10925).
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
        if layer.mixer is not None:
            h = b.norm(f"{p}.attn_in", x, f"{p}.attn_norm.weight", spec.norm)
            h = mixers.append(p, h, layer.mixer)
            x = b.add(f"{p}.x_attn", x, h)
        if layer.mlp is not None:
            h = b.norm(f"{p}.mlp_in", x, f"{p}.mlp_norm.weight", spec.norm)
            h = feed_forward(b, p, h, layer.mlp, spec.hidden)
            x = b.add(f"{p}.x_mlp", x, h)
    return b.build(language_head(b, x, spec))
