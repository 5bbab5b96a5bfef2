"""Operations that only some families need: layer norms, latents, experts, states. Same rules as in ir.py.

Counted and priced for all families; a backend that computes one of them says so (backends/protocol.py).
"""

from __future__ import annotations

from typing import ClassVar

from kvwise.frozen import dataclass
from kvwise.program.ir import Attention, Op
from kvwise.spec.model import Activation


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions(Op):
    """out[t] = table[positions[t] + offset]: learned positions, which are then added."""

    table: str
    offset: int
    slot_fields: ClassVar[tuple[str, ...]] = ()
    weight_fields: ClassVar[tuple[str, ...]] = ("table",)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm(Op):
    """(x - mean) / sqrt(variance + eps) · weight (+ bias), over a row."""

    x: str
    weight: str
    bias: str | None
    eps: float
    weight_fields: ClassVar[tuple[str, ...]] = ("weight", "bias")
    in_place: ClassVar[str | None] = "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRmsNorm(Op):
    """RmsNorm without a weight: each group of `group` elements over its root mean square."""

    x: str
    eps: float
    group: int
    in_place: ClassVar[str | None] = "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRmsNorm(Op):
    """RmsNorm of each group of `group` elements, with a weight as wide as the row."""

    x: str
    weight: str
    eps: float
    group: int
    weight_fields: ClassVar[tuple[str, ...]] = ("weight",)
    in_place: ClassVar[str | None] = "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activate(Op):
    """out = activation(x): a feed-forward block without a gate."""

    x: str
    activation: Activation
    in_place: ClassVar[str | None] = "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate(Op):
    """out = x · sigmoid(gate); a gate of one element rules its whole row."""

    x: str
    gate: str
    slot_fields: ClassVar[tuple[str, ...]] = ("x", "gate")
    in_place: ClassVar[str | None] = "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class VariedAttention(Attention):
    """Attention with V of a width of its own, chunks, or sinks.

    chunk c: the query at position p sees p - p mod c .. p. sinks [num_q_heads]: one more score per head in the
    softmax, without a value.
    """

    v_head_dim: int
    chunk: int | None = None
    sinks: str | None = None
    weight_fields: ClassVar[tuple[str, ...]] = ("sinks",)


@dataclass(frozen=True, slots=True, kw_only=True)
class BorrowedAttention(Op):
    """Attention to K and V that the op of `layer` has written this step and before; writes none."""

    q: str
    layer: int
    num_q_heads: int
    head_dim: int
    v_head_dim: int
    scale: float
    softcap: float | None
    window: int | None
    slot_fields: ClassVar[tuple[str, ...]] = ("q",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index(Op):
    """Choose for each query the `top_k` positions that attention will read; out holds their numbers.

    Score of position s: Σ over heads of weight · relu(q·k_s); k [T, head_dim] is kept per token beside the latent of
    `layer`, in 8 bits. Source: DeepSeek-V3.2 (arXiv 2512.02556) §2.1.
    """

    q: str
    k: str
    head_weights: str
    layer: int
    num_heads: int
    head_dim: int
    top_k: int
    slot_fields: ClassVar[tuple[str, ...]] = ("q", "k", "head_weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(Op):
    """Multi-head latent attention, absorbed: queries are taken to the latent's space, and what was attended back.

    Writes this step's latent [T, kv_rank] and rotated key [T, rope_dim] into `layer` as one head, then per head h:
    q'ₕ = Wᴷₕᵀ qₕ (nope part), scores scale · (q'ₕ·latent + q_ropeₕ·k_rope), out_h = Wⱽₕ Σ softmax · latent.
    kv_up [heads · (nope_dim + v_head_dim), kv_rank] holds Wᴷ and Wⱽ. A head of q is its rope part, then the rest.
    `chosen` names the slot of positions to read where not all are. One form for prefill and decode, so that a row's
    numbers do not depend on what it is computed with. Source: DeepSeek-V2 (arXiv 2405.04434) §2.1.
    """

    q: str
    latent: str
    k_rope: str
    chosen: str | None
    kv_up: str
    layer: int
    num_q_heads: int
    nope_dim: int
    rope_dim: int
    v_head_dim: int
    kv_rank: int
    top_k: int | None
    scale: float
    slot_fields: ClassVar[tuple[str, ...]] = ("q", "latent", "k_rope", "chosen")
    weight_fields: ClassVar[tuple[str, ...]] = ("kv_up",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Op):
    """Choose `top_k` experts per token from the router's logits; out holds their numbers, then their weights.

    scale [experts]: learned factors of those weights.
    """

    x: str
    top_k: int
    scale: str | None = None
    weight_fields: ClassVar[tuple[str, ...]] = ("scale",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Op):
    """Σ over the experts of each token's route of weight · expert(x): gated where `gate` is there, else plain.

    gate, up [experts, intermediate, in] and down [experts, in, intermediate], each with biases [experts, out] where
    there are any. Which experts a step reads is for the data to say. What it works in is the backend's scratch.
    """

    x: str
    routes: str
    gate: str | None
    up: str
    down: str
    gate_bias: str | None
    up_bias: str | None
    down_bias: str | None
    top_k: int
    activation: Activation
    slot_fields: ClassVar[tuple[str, ...]] = ("x", "routes")
    weight_fields: ClassVar[tuple[str, ...]] = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalConv(Op):
    """out[t] = silu(Σ over the last `kernel` tokens of weight · x (+ bias)), each column by itself.

    weight [width, kernel]. The request's last kernel - 1 tokens are part of its state `state`.
    """

    x: str
    weight: str
    bias: str | None
    state: int
    weight_fields: ClassVar[tuple[str, ...]] = ("weight", "bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRule(Op):
    """Gated delta rule, in order of tokens, per value head: S ← α S, S ← S + β k (v - Sᵀ k)ᵀ, out = Sᵀ q.

    x holds q and k of the key heads, each normalized to length 1, then v; α = exp(-exp(a_log) · softplus(decay +
    dt_bias)), β = sigmoid(beta). S [key_dim, value_dim] is the request's `state`. Source: arXiv 2412.06464 eq. 10.
    """

    x: str
    beta: str
    decay: str
    a_log: str
    dt_bias: str
    state: int
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    slot_fields: ClassVar[tuple[str, ...]] = ("x", "beta", "decay")
    weight_fields: ClassVar[tuple[str, ...]] = ("a_log", "dt_bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace(Op):
    """Mamba-2, in order of tokens, per head: h ← exp(-exp(a_log) Δ) h + Δ x Bᵀ, out = h C + d x; Δ = softplus(dt +
    dt_bias).

    x holds x of all heads, then B and C of all groups. h [head_dim, state_dim] is the request's `state`.
    Source: arXiv 2405.21060 §7.
    """

    x: str
    dt: str
    a_log: str
    d: str
    dt_bias: str
    state: int
    num_heads: int
    head_dim: int
    state_dim: int
    num_groups: int
    slot_fields: ClassVar[tuple[str, ...]] = ("x", "dt")
    weight_fields: ClassVar[tuple[str, ...]] = ("a_log", "d", "dt_bias")
