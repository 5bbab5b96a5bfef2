"""The feed-forward blocks that families share: gated, plain, and experts."""

from __future__ import annotations

from kvwise.errors import SpecError
from kvwise.program.special_builder import SpecialBuilder
from kvwise.spec.model import FeedForward, MlpSpec, MoeSpec, PlainMlpSpec


def feed_forward(b: SpecialBuilder, p: str, x: str, m: FeedForward, hidden: int) -> str:
    """Append layer `p`'s block on `x` [T, hidden]; returns the slot [T, hidden] before the residual."""
    match m:
        case MlpSpec():
            return gated_mlp(b, p, x, m, hidden)
        case PlainMlpSpec():
            return plain_mlp(b, p, x, m, hidden)
        case MoeSpec():
            return experts(b, p, x, m, hidden)
    raise SpecError(f"a block of {type(m).__name__} is not one that families share")


def gated_mlp(b: SpecialBuilder, p: str, x: str, m: MlpSpec, hidden: int, part: str = "mlp") -> str:
    """down(activation(gate(x)) · up(x)). `part` names the weights: 'mlp' or 'mlp.shared'."""
    slot = p if part == "mlp" else f"{p}.{part}"
    gate = b.matmul(f"{slot}.gate", x, f"{p}.{part}.gate.weight", m.intermediate, bias=m.bias)
    up = b.matmul(f"{slot}.up", x, f"{p}.{part}.up.weight", m.intermediate, bias=m.bias)
    h = b.glu(f"{slot}.glu", gate, up, m.activation)
    return b.matmul(f"{slot}.mlp_out", h, f"{p}.{part}.down.weight", hidden, bias=m.bias)


def plain_mlp(b: SpecialBuilder, p: str, x: str, m: PlainMlpSpec, hidden: int, part: str = "mlp") -> str:
    """down(activation(up(x)))."""
    slot = p if part == "mlp" else f"{p}.{part}"
    up = b.matmul(f"{slot}.up", x, f"{p}.{part}.up.weight", m.intermediate, bias=m.bias)
    h = b.activate(f"{slot}.activated", up, m.activation)
    return b.matmul(f"{slot}.mlp_out", h, f"{p}.{part}.down.weight", hidden, bias=m.bias)


def experts(b: SpecialBuilder, p: str, x: str, m: MoeSpec, hidden: int) -> str:
    """Router, the experts it chooses, and beside them the shared block, gated where it is."""
    logits = b.matmul(f"{p}.router", x, f"{p}.mlp.router.weight", m.num_experts, bias=m.router_bias)
    routes = b.route(f"{p}.routes", logits, m.top_k)
    source = x
    if m.latent is not None:
        source = b.matmul(f"{p}.expert_in", x, f"{p}.mlp.latent_in.weight", m.latent)
    h = b.experts(f"{p}.experts", source, routes, p, m)
    if m.latent is not None:
        h = b.matmul(f"{p}.expert_out", h, f"{p}.mlp.latent_out.weight", hidden)
    if m.shared is None:
        return h
    if isinstance(m.shared, MlpSpec):
        shared = gated_mlp(b, p, x, m.shared, hidden, "mlp.shared")
    else:
        shared = plain_mlp(b, p, x, m.shared, hidden, "mlp.shared")
    if m.shared_gate:
        gate = b.matmul(f"{p}.shared_gate", x, f"{p}.mlp.shared_gate.weight", 1)
        shared = b.gate(f"{p}.shared_gated", shared, gate)
    return b.add(f"{p}.mlp_sum", h, shared)
