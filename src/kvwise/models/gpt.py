"""GPT-2, OPT, GPT-NeoX, Phi, Falcon: layer norms, learned or rotary positions, halves in sequence or side by side.

Sources: GPT-2 (Radford et al., 2019) §2.3; OPT (arXiv 2205.01068); GPT-NeoX-20B (arXiv 2204.06745) §2.1 for parallel
residuals; Falcon (arXiv 2311.16867) §4.
"""

from __future__ import annotations

from kvwise.models.head import language_head
from kvwise.models.mixer import Mixers
from kvwise.models.mlp import feed_forward
from kvwise.program.ir import Program
from kvwise.program.special_builder import SpecialBuilder
from kvwise.spec.model import LayerSpec, ModelSpec, Residual


def program(spec: ModelSpec) -> Program:
    b = SpecialBuilder()
    mixers = Mixers(b, spec)
    x = b.embed("x", "embed.weight", spec.vocab, spec.hidden)
    if spec.learned_positions:
        offset = spec.learned_positions - spec.max_positions
        where = b.positions("positions", "positions.weight", spec.learned_positions, spec.hidden, offset)
        x = b.add("x_placed", x, where)
    for i, layer in enumerate(spec.layers):
        p = f"layers.{i}"
        x = (_sequential if spec.residual is Residual.SEQUENTIAL else _parallel)(b, mixers, p, x, layer, spec)
    return b.build(language_head(b, x, spec))


def _sequential(b: SpecialBuilder, mixers: Mixers, p: str, x: str, layer: LayerSpec, spec: ModelSpec) -> str:
    h = b.norm(f"{p}.attn_in", x, f"{p}.attn_norm.weight", spec.norm)
    x = b.add(f"{p}.x_attn", x, mixers.append(p, h, layer.mixer))
    h = b.norm(f"{p}.mlp_in", x, f"{p}.mlp_norm.weight", spec.norm)
    return b.add(f"{p}.x_mlp", x, _block(b, p, h, layer, spec))


def _parallel(b: SpecialBuilder, mixers: Mixers, p: str, x: str, layer: LayerSpec, spec: ModelSpec) -> str:
    """Both halves read x, through two norms or one; both are added to it."""
    h = b.norm(f"{p}.attn_in", x, f"{p}.attn_norm.weight", spec.norm)
    inner = h
    if spec.residual is Residual.PARALLEL:
        inner = b.norm(f"{p}.mlp_in", x, f"{p}.mlp_norm.weight", spec.norm)
    block = _block(b, p, inner, layer, spec)
    x = b.add(f"{p}.x_attn", x, mixers.append(p, h, layer.mixer))
    return b.add(f"{p}.x_mlp", x, block)


def _block(b: SpecialBuilder, p: str, x: str, layer: LayerSpec, spec: ModelSpec) -> str:
    assert layer.mlp is not None
    return feed_forward(b, p, x, layer.mlp, spec.hidden)
