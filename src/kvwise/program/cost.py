"""What a step costs before it runs: FLOPs and bytes of every op, as functions of the step's shape.

Counts are of the mathematics, not of an implementation: a multiply-add is 2 FLOPs, a weight matrix is read once
per step, K and V of a request are read once per step for all query heads that share them. Seconds are not known
here: backends/price turns these into time with a device profile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import singledispatch

from kvwise.program.ir import (
    Add,
    Attention,
    Embed,
    GatherRows,
    Glu,
    MatMul,
    Op,
    Program,
    Quantize,
    RmsNorm,
    Rope,
    Rows,
    Softcap,
)
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.shape import StepShape

WeightBytes = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class OpCost:
    """FLOPs and bytes moved. kv_read_bytes are moved, not held."""

    flops: int = 0
    weight_bytes: int = 0
    kv_read_bytes: int = 0
    kv_write_bytes: int = 0
    activation_bytes: int = 0

    @property
    def moved_bytes(self) -> int:
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes

    def __add__(self, other: OpCost) -> OpCost:
        return OpCost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


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


def visible_positions(queries: int, context: int, window: int | None) -> int:
    """Σ over the last `queries` positions p < context of min(p + 1, window): the cells attention computes."""

    def triangle(n: int) -> int:
        return n * (n + 1) // 2

    if window is None or window >= context:
        return triangle(context) - triangle(context - queries)
    below = max(
        0, min(window, context) - (context - queries)
    )  # queries that still see everything before them
    first = context - queries
    return triangle(first + below) - triangle(first) + (queries - below) * window


def visible_span(queries: int, context: int, window: int | None) -> int:
    """Positions that at least one of the last `queries` queries sees: each is read once."""
    return context if window is None else min(context, queries + window - 1)


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
    layer = c.kv.layers[op.layer]
    layer_bytes = c.kv.layer_bytes_per_token(op.layer)
    pairs = list(zip(c.shape.queries, c.shape.contexts, strict=True))
    cells = sum(visible_positions(q, n, op.window) for q, n in pairs)
    softmax = 5  # scale, maximum, subtract, exponential, sum: per cell and head
    return OpCost(
        flops=cells * op.num_q_heads * (2 * (layer.k_dim + layer.v_dim) + softmax),
        kv_read_bytes=sum(visible_span(q, n, op.window) for q, n in pairs) * layer_bytes,
        kv_write_bytes=c.shape.num_tokens * layer_bytes,
        activation_bytes=c.activation_bytes(op),
    )


_FLOPS_PER_ELEMENT: dict[type[Op], int] = {
    RmsNorm: 4,  # square, sum, scale, weight
    Quantize: 3,  # magnitude, maximum, scale
    Rope: 3,  # per element: two multiplies, one add
    Add: 1,
    Glu: 6,  # an exponential counted as 3, a division, two multiplies
    GatherRows: 0,
    Softcap: 5,
}


def _elementwise(op: Op, c: _Context) -> OpCost:
    return c.cost(op, _FLOPS_PER_ELEMENT[type(op)] * c.elements(op.out))


for _kind in _FLOPS_PER_ELEMENT:
    _op_cost.register(_kind, _elementwise)
