"""Mixers with a state that does not grow: gated delta net and Mamba-2. One order of tokens, whatever the chunks."""

from __future__ import annotations

from kvwise.program.special_builder import SpecialBuilder
from kvwise.spec.model import Activation, DeltaNetSpec, Mamba2Spec, ModelSpec, NormSpec


def delta_net(b: SpecialBuilder, p: str, x: str, m: DeltaNetSpec, spec: ModelSpec) -> str:
    """Projections, convolution, delta rule, a norm per head gated by silu(z), output; slot [T, hidden].

    Source: Gated Delta Networks (arXiv 2412.06464) §3.3; Qwen3-Next as in transformers 5.24.0.
    """
    qkv = b.matmul(f"{p}.qkv", x, f"{p}.linear.qkv.weight", m.conv_width)
    z = b.matmul(f"{p}.z", x, f"{p}.linear.z.weight", m.value_width)
    beta = b.matmul(f"{p}.beta", x, f"{p}.linear.beta.weight", m.num_value_heads)
    decay = b.matmul(f"{p}.decay", x, f"{p}.linear.decay.weight", m.num_value_heads)
    state = b.open_state(m)
    qkv = b.causal_conv(f"{p}.qkv_conv", qkv, f"{p}.linear.conv.weight", m.conv_kernel, bias=False, state=state)
    heads = b.delta_rule(f"{p}.heads", qkv, beta, decay, p, m, state)
    heads = b.rms_norm(f"{p}.heads_normed", heads, f"{p}.linear.norm.weight", NormSpec(spec.norm.eps), m.value_dim)
    heads = b.glu(f"{p}.heads_gated", z, heads, Activation.SILU)
    return b.matmul(f"{p}.attn_out", heads, f"{p}.linear.o.weight", spec.hidden)


def mamba2(b: SpecialBuilder, p: str, x: str, m: Mamba2Spec, spec: ModelSpec) -> str:
    """Projections, convolution, state space, gate, a norm per group, output; slot [T, hidden].

    Source: Mamba-2 (arXiv 2405.21060) §7; Nemotron-H as in transformers 5.24.0.
    """
    z = b.matmul(f"{p}.z", x, f"{p}.mamba.z.weight", m.inner_width, bias=m.bias)
    xbc = b.matmul(f"{p}.xbc", x, f"{p}.mamba.xbc.weight", m.conv_width, bias=m.bias)
    dt = b.matmul(f"{p}.dt", x, f"{p}.mamba.dt.weight", m.num_heads, bias=m.bias)
    state = b.open_state(m)
    xbc = b.causal_conv(f"{p}.xbc_conv", xbc, f"{p}.mamba.conv.weight", m.conv_kernel, bias=m.conv_bias, state=state)
    heads = b.state_space(f"{p}.heads", xbc, dt, p, m, state)
    heads = b.glu(f"{p}.heads_gated", z, heads, Activation.SILU)
    group = m.inner_width // m.num_groups
    heads = b.group_rms_norm(f"{p}.heads_normed", heads, f"{p}.mamba.norm.weight", spec.norm.eps, group)
    return b.matmul(f"{p}.attn_out", heads, f"{p}.mamba.o.weight", spec.hidden, bias=m.bias)
