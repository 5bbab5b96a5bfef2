"""Gemma 4: Gemma 3's plan, with experts beside the dense block and a second embedding for every layer.

Source: transformers 5.24.0, models/gemma4/modeling_gemma4.py. There the second embedding and its projection are one
table and one matrix for all layers; here each layer has its slice.
"""

from __future__ import annotations

import math

from kvwise.models.head import language_head
from kvwise.models.mixer import Mixers
from kvwise.models.mlp import feed_forward, gated_mlp
from kvwise.program.ir import Program
from kvwise.program.special_builder import SpecialBuilder
from kvwise.spec.model import DenseAndMoeSpec, FeedForward, MlpSpec, ModelSpec, NormSpec, PerLayerInputSpec


def program(spec: ModelSpec) -> Program:
    b = SpecialBuilder()
    mixers = Mixers(b, spec)
    x = embedded = b.embed("x", "embed.weight", spec.vocab, spec.hidden, spec.embedding_scale)
    for i, layer in enumerate(spec.layers):
        p = f"layers.{i}"
        h = b.norm(f"{p}.attn_in", x, f"{p}.attn_norm.weight", spec.norm)
        h = mixers.append(p, h, layer.mixer)
        h = b.norm(f"{p}.attn_post", h, f"{p}.attn_post_norm.weight", spec.norm)
        x = b.add(f"{p}.x_attn", x, h)
        if layer.mlp is not None:
            h = b.norm(f"{p}.mlp_in", x, f"{p}.mlp_norm.weight", spec.norm)
            h = _block(b, p, x, h, layer.mlp, spec)
            h = b.norm(f"{p}.mlp_post", h, f"{p}.mlp_post_norm.weight", spec.norm)
            x = b.add(f"{p}.x_mlp", x, h)
        if spec.per_layer_input is not None:
            x = _with_layer_input(b, p, x, embedded, layer.mlp, spec, spec.per_layer_input)
    return b.build(language_head(b, x, spec))


def _block(b: SpecialBuilder, p: str, x: str, normed: str, mlp: FeedForward, spec: ModelSpec) -> str:
    """Experts read the residual `x` through their own norms; the router through one without a weight, scaled."""
    if not isinstance(mlp, DenseAndMoeSpec):
        return feed_forward(b, p, normed, mlp, spec.hidden)
    moe = mlp.moe
    dense = gated_mlp(b, p, normed, mlp.dense, spec.hidden)
    dense = b.norm(f"{p}.dense_post", dense, f"{p}.mlp.dense_post_norm.weight", spec.norm)
    scaled = b.rms_norm(f"{p}.router_in", x, f"{p}.mlp.router.scale", NormSpec(spec.norm.eps))
    logits = b.matmul(f"{p}.router", scaled, f"{p}.mlp.router.weight", moe.num_experts)
    routes = b.route(f"{p}.routes", logits, moe.top_k, scale=f"{p}.mlp.router.expert_scale")
    h = b.norm(f"{p}.experts_in", x, f"{p}.mlp.experts_norm.weight", spec.norm)
    h = b.experts(f"{p}.experts", h, routes, p, moe)
    h = b.norm(f"{p}.experts_post", h, f"{p}.mlp.experts_post_norm.weight", spec.norm)
    return b.add(f"{p}.mlp_sum", dense, h)


def _with_layer_input(
    b: SpecialBuilder,
    p: str,
    x: str,
    embedded: str,
    mlp: FeedForward | None,
    spec: ModelSpec,
    extra: PerLayerInputSpec,
) -> str:
    """Add this layer's input: its own embedding of the token and a projection of the first one, through a gate."""
    dense = mlp.dense if isinstance(mlp, DenseAndMoeSpec) else mlp
    assert isinstance(dense, MlpSpec)
    own = b.embed(f"{p}.own", f"{p}.input.embed.weight", extra.vocab, extra.width, math.sqrt(extra.width))
    projected = b.matmul(f"{p}.own_projected", embedded, f"{p}.input.projection.weight", extra.width)
    projected = b.norm(f"{p}.own_normed", projected, "input_norm.weight", spec.norm)
    own = b.add(f"{p}.own_sum", projected, own)
    gate = b.matmul(f"{p}.own_gate", x, f"{p}.input.gate.weight", extra.width)
    h = b.glu(f"{p}.own_gated", gate, own, dense.activation)
    h = b.matmul(f"{p}.own_out", h, f"{p}.input.out.weight", spec.hidden)
    h = b.norm(f"{p}.own_post", h, f"{p}.input.post_norm.weight", spec.norm)
    return b.add(f"{p}.x_own", x, h)
