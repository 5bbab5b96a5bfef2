"""The feed-forward blocks that families share."""

from __future__ import annotations

from kvwise.program.builder import ProgramBuilder
from kvwise.spec.model import MlpSpec


def gated_mlp(b: ProgramBuilder, p: str, x: str, m: MlpSpec, hidden: int) -> str:
    """down(activation(gate(x)) · up(x)) on `x` [T, hidden]; returns the slot [T, hidden] before the residual."""
    gate = b.matmul(f"{p}.gate", x, f"{p}.mlp.gate.weight", m.intermediate, bias=m.bias)
    up = b.matmul(f"{p}.up", x, f"{p}.mlp.up.weight", m.intermediate, bias=m.bias)
    h = b.glu(f"{p}.glu", gate, up, m.activation)
    return b.matmul(f"{p}.mlp_out", h, f"{p}.mlp.down.weight", hidden, bias=m.bias)
