"""What a step costs before it runs: FLOPs and bytes of every op, as functions of the step's shape.

Counts are of the mathematics, not of an implementation: a multiply-add is 2 FLOPs, a weight matrix is read once
per step, K and V of a request are read once per step for all query heads that share them. Where the data decides
what is read (which experts, which positions), the count is an expectation with the least and the most beside it.
Seconds are not known here: backends/price turns these into time with a device profile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from functools import singledispatch

from kvwise.frozen import dataclass
from kvwise.program.collective import AllGather, AllReduce, Receive, Send, TakeShard
from kvwise.program.ir import (
    Add,
    Attention,
    Embed,
    GatherRows,
    Glu,
    MatMul,
    Narrow,
    Op,
    Program,
    Quantize,
    RmsNorm,
    Rope,
    Rows,
    Softcap,
)
from kvwise.program.special import (
    Activate,
    BorrowedAttention,
    CausalConv,
    DeltaRule,
    Experts,
    Gate,
    GroupRmsNorm,
    Index,
    LatentAttention,
    LayerNorm,
    PlainRmsNorm,
    Positions,
    Route,
    StateSpace,
    VariedAttention,
)
from kvwise.program.visible import Visible, visible_positions
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.shape import StepShape
from kvwise.units import ceil_div

_SOFTMAX_FLOPS = 5  # scale, maximum, subtract, exponential, sum: per cell and head

WeightBytes = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class OpCost:
    """FLOPs and bytes moved, as expected. kv_read_bytes are moved, not held; state_bytes: states read and written.

    fewer_bytes, more_bytes: by how much the data can make moved_bytes less and more than expected. link_bytes: what
    this rank sends to others, which is not memory traffic and not part of moved_bytes.
    """

    flops: int = 0
    weight_bytes: int = 0
    kv_read_bytes: int = 0
    kv_write_bytes: int = 0
    activation_bytes: int = 0
    state_bytes: int = 0
    fewer_bytes: int = 0
    more_bytes: int = 0
    link_bytes: int = 0

    @property
    def moved_bytes(self) -> int:
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes + self.state_bytes

    @property
    def least_moved_bytes(self) -> int:
        return self.moved_bytes - self.fewer_bytes

    @property
    def most_moved_bytes(self) -> int:
        return self.moved_bytes + self.more_bytes

    def __add__(self, other: OpCost) -> OpCost:
        return OpCost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def times(self, count: int) -> OpCost:
        """Of `count` equal ops."""
        return OpCost(*(getattr(self, f.name) * count for f in fields(self)))


@dataclass(frozen=True, slots=True)
class ProgramCost:
    """One OpCost per op, in program order, and their sum."""

    ops: tuple[tuple[Op, OpCost], ...]
    total: OpCost


def cost_of(program: Program, shape: StepShape, kv: KVCacheSpec, weight_bytes: WeightBytes) -> ProgramCost:
    """`weight_bytes(name)` gives a weight's size as the backend reads it. Pure."""
    context = _Context(program, shape, kv, weight_bytes)
    ops = tuple((op, _op_cost(op, context)) for op in program.ops)
    total = OpCost()
    for _, cost in ops:
        total = total + cost
    return ProgramCost(ops, total)


def op_cost(program: Program, op: Op, shape: StepShape, kv: KVCacheSpec, weight_bytes: WeightBytes) -> OpCost:
    """One op of `program`, as in cost_of. Pure."""
    return _op_cost(op, _Context(program, shape, kv, weight_bytes))


@dataclass(frozen=True, slots=True)
class _Context:
    program: Program
    shape: StepShape
    kv: KVCacheSpec
    weight_bytes: WeightBytes

    def rows(self, slot: str) -> int:
        tokens = self.program.slots[slot].rows is Rows.TOKENS
        return self.shape.num_tokens if tokens else self.shape.num_logits_rows

    def elements(self, slot: str) -> int:
        return self.rows(slot) * self.program.slots[slot].width

    def activation_bytes(self, op: Op) -> int:
        return sum(self.rows(s) * self.program.slots[s].row_bytes for s in (*op.reads, op.out))

    def cost(self, op: Op, flops: int) -> OpCost:
        weights = sum(self.weight_bytes(w) for w in op.weights)
        return OpCost(flops=flops, weight_bytes=weights, activation_bytes=self.activation_bytes(op))


@singledispatch
def _op_cost(op: Op, context: _Context) -> OpCost:
    raise NotImplementedError(f"no cost is written for op {type(op).__name__}")


@_op_cost.register
def _(op: Embed, c: _Context) -> OpCost:
    rows, _ = c.program.weights[op.table].shape
    looked_up = c.rows(op.out) * c.weight_bytes(op.table) // rows
    return OpCost(flops=c.elements(op.out), weight_bytes=looked_up, activation_bytes=c.activation_bytes(op))


@_op_cost.register
def _(op: MatMul, c: _Context) -> OpCost:
    out, width = c.program.weights[op.weight].shape
    return c.cost(op, 2 * c.rows(op.x) * out * width + (c.elements(op.out) if op.bias else 0))


@_op_cost.register
def _(op: Attention, c: _Context) -> OpCost:
    return _attention(c, op, op.layer, op.num_q_heads, Visible(op.window), writes=True)


@_op_cost.register
def _(op: VariedAttention, c: _Context) -> OpCost:
    cost = _attention(c, op, op.layer, op.num_q_heads, Visible(op.window, op.chunk), writes=True)
    sinks = sum(c.weight_bytes(w) for w in op.weights)
    return cost + OpCost(weight_bytes=sinks)


@_op_cost.register
def _(op: BorrowedAttention, c: _Context) -> OpCost:
    return _attention(c, op, op.layer, op.num_q_heads, Visible(op.window), writes=False)


def _attention(c: _Context, op: Op, layer: int, num_q_heads: int, visible: Visible, *, writes: bool) -> OpCost:
    kept = c.kv.layers[layer]
    layer_bytes = c.kv.layer_bytes_per_token(layer)
    cells, span = visible.totals(c.shape.queries, c.shape.contexts)
    return OpCost(
        flops=cells * num_q_heads * (2 * (kept.k_dim + kept.v_dim) + _SOFTMAX_FLOPS),
        kv_read_bytes=span * layer_bytes,
        kv_write_bytes=c.shape.num_tokens * layer_bytes if writes else 0,
        activation_bytes=c.activation_bytes(op),
    )


@_op_cost.register
def _(op: LatentAttention, c: _Context) -> OpCost:
    """Absorbed: each query head is taken to the latent's space and its sum back, once per token, not per cell.

    With top_k chosen positions a query reads as many of them; how far those of several queries coincide is for the
    data to say: at least one query's are read, at most all queries' or the whole context.
    """
    layer_bytes = c.kv.layer_bytes_per_token(op.layer)
    pairs = list(zip(c.shape.queries, c.shape.contexts, strict=True))
    cells = sum(visible_positions(q, n, op.top_k) for q, n in pairs)
    per_cell = 2 * (op.kv_rank + op.rope_dim) + 2 * op.kv_rank + _SOFTMAX_FLOPS
    per_token = 2 * op.kv_rank * (op.nope_dim + op.v_head_dim)
    reads = [_drawn(n, op.top_k or n, q) for q, n in pairs]
    least, expected, most = (layer_bytes * sum(column) for column in zip(*reads, strict=True)) if reads else (0, 0, 0)
    return OpCost(
        flops=op.num_q_heads * (cells * per_cell + c.shape.num_tokens * per_token),
        weight_bytes=sum(c.weight_bytes(w) for w in op.weights),
        kv_read_bytes=expected,
        kv_write_bytes=c.shape.num_tokens * layer_bytes,
        activation_bytes=c.activation_bytes(op),
        fewer_bytes=expected - least,
        more_bytes=most - expected,
    )


@_op_cost.register
def _(op: Index, c: _Context) -> OpCost:
    """Every query scores every position before it: per head a product, a relu, a weighted sum; choosing is free."""
    pairs = list(zip(c.shape.queries, c.shape.contexts, strict=True))
    cells = sum(visible_positions(q, n, None) for q, n in pairs)
    key_bytes = c.kv.layers[op.layer].index_bytes
    return OpCost(
        flops=cells * op.num_heads * (2 * op.head_dim + 3),
        kv_read_bytes=sum(n for _, n in pairs) * key_bytes,
        kv_write_bytes=c.shape.num_tokens * key_bytes,
        activation_bytes=c.activation_bytes(op),
    )


@_op_cost.register
def _(op: Experts, c: _Context) -> OpCost:
    """Every token passes top_k experts, so FLOPs are exact. Which experts, and so the bytes, is for the data to say.

    At least top_k are read, at most top_k for each token or all. Expected: tokens choose independently and evenly.
    """
    experts = c.program.weights[op.up].shape[0]
    tokens = c.rows(op.x)
    each = sum(c.weight_bytes(w) for w in op.weights) // experts
    elements = sum(c.program.weights[w].num_elements for w in op.weights) // experts
    inner = c.program.weights[op.up].shape[1]
    least, expected, most = (each * n for n in _drawn(experts, op.top_k, tokens))
    activation = _FLOPS_PER_ELEMENT[Glu] * inner
    return OpCost(
        flops=tokens * op.top_k * (2 * elements + activation + 2 * c.program.slots[op.x].width),
        weight_bytes=expected,
        activation_bytes=c.activation_bytes(op),
        fewer_bytes=expected - least,
        more_bytes=most - expected,
    )


def _drawn(things: int, per_draw: int, draws: int) -> tuple[int, int, int]:
    """(least, expected, most) different ones of `things` after `draws` draws of `per_draw` different ones each.

    Expected, for even and independent draws: things · (1 - (1 - per_draw / things)^draws), rounded.
    """
    if not draws or not things:
        return 0, 0, 0
    per_draw = min(per_draw, things)
    most = min(things, draws * per_draw)
    expected = round(things * -math.expm1(draws * math.log1p(-per_draw / things))) if per_draw < things else things
    return per_draw, min(max(expected, per_draw), most), most


@_op_cost.register
def _(op: Positions, c: _Context) -> OpCost:
    rows, _ = c.program.weights[op.table].shape
    looked_up = c.rows(op.out) * c.weight_bytes(op.table) // rows
    return OpCost(weight_bytes=looked_up, activation_bytes=c.activation_bytes(op))


@_op_cost.register
def _(op: CausalConv, c: _Context) -> OpCost:
    """The request's last tokens are counted with the state of the op that follows."""
    _, kernel = c.program.weights[op.weight].shape
    silu = 5
    return c.cost(op, c.elements(op.out) * (2 * kernel + silu + (1 if op.bias else 0)))


@_op_cost.register
def _(op: DeltaRule, c: _Context) -> OpCost:
    """Per token and value head: decay 1, Sᵀk 2, the outer product 2, Sᵀq 2 per element of S; v - Sᵀk, times β."""
    size = op.key_dim * op.value_dim
    per_head = 7 * size + 2 * op.value_dim + 8 * op.key_dim  # the last: lengths of q and k, and dividing by them
    return _recurrent(op, c, op.state, c.rows(op.x) * op.num_value_heads * per_head)


@_op_cost.register
def _(op: StateSpace, c: _Context) -> OpCost:
    """Per token and head: decay 1, adding Δ x Bᵀ 2, h C 2 per element of h; Δ x 1 and d x 2 per element of x."""
    per_head = 5 * op.head_dim * op.state_dim + 3 * op.head_dim
    return _recurrent(op, c, op.state, c.rows(op.x) * op.num_heads * per_head)


def _recurrent(op: Op, c: _Context, state: int, flops: int) -> OpCost:
    """A request's state is read and written once a step, however many tokens it computes."""
    requests = sum(1 for q in c.shape.queries if q)
    cost = c.cost(op, flops)
    return cost + OpCost(state_bytes=2 * requests * c.kv.states[state].nbytes)


@_op_cost.register
def _(op: AllReduce, c: _Context) -> OpCost:
    """Around a ring: each of n ranks sends 2 (n - 1) / n of the slot. Source: Patarasuk and Yuan, 2009, §3."""
    slot_bytes = c.rows(op.x) * c.program.slots[op.x].row_bytes
    sent = ceil_div(2 * (op.ranks - 1) * slot_bytes, op.ranks)
    return c.cost(op, c.elements(op.x)) + OpCost(link_bytes=sent)


@_op_cost.register
def _(op: AllGather, c: _Context) -> OpCost:
    """Around a ring: each rank sends n - 1 shards, its own first."""
    shard_bytes = c.rows(op.x) * c.program.slots[op.x].row_bytes
    return c.cost(op, 0) + OpCost(link_bytes=(op.ranks - 1) * shard_bytes)


@_op_cost.register
def _(op: Send, c: _Context) -> OpCost:
    return c.cost(op, 0) + OpCost(link_bytes=c.rows(op.x) * c.program.slots[op.x].row_bytes)


_FLOPS_PER_ELEMENT: dict[type[Op], int] = {
    RmsNorm: 4,  # square, sum, scale, weight
    Narrow: 1,
    Quantize: 3,  # magnitude, maximum, scale
    Rope: 3,  # per element: two multiplies, one add
    Add: 1,
    Glu: 6,  # an exponential counted as 3, a division, two multiplies
    GatherRows: 0,
    Softcap: 5,
    LayerNorm: 6,  # mean, subtract, square, sum, scale, weight (and a bias)
    PlainRmsNorm: 3,
    GroupRmsNorm: 4,
    Activate: 5,
    Gate: 5,  # an exponential counted as 3, a division, a multiply
    TakeShard: 0,
    Receive: 0,  # counted where it is sent
}


def _elementwise(op: Op, c: _Context) -> OpCost:
    return c.cost(op, _FLOPS_PER_ELEMENT[type(op)] * c.elements(op.out))


@_op_cost.register
def _(op: Route, c: _Context) -> OpCost:
    """Softmax or sigmoid of every logit; choosing is free."""
    return c.cost(op, _SOFTMAX_FLOPS * c.elements(op.x))


for _kind in _FLOPS_PER_ELEMENT:
    _op_cost.register(_kind, _elementwise)
