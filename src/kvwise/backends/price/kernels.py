"""How a serving engine cuts a program into kernels: what is launched, and what passes over activations there are.

Projections that read the same input in the same type are one matrix product; a run of small ops on rows (a residual,
a norm, a rotation, an activation) is one pass that reads what comes from outside the run and writes what is needed
after it. Equal kernels of different layers are one `Kernel` with a count. Knows no device and no seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from enum import Enum

from kvwise.frozen import dataclass
from kvwise.program.collective import AllGather, AllReduce, Receive, Send
from kvwise.program.ir import Attention, GatherRows, MatMul, Op, Program, RmsNorm, Rows
from kvwise.program.special import (
    BorrowedAttention,
    DeltaRule,
    Experts,
    Index,
    LatentAttention,
    Route,
    StateSpace,
)


class KernelKind(Enum):
    """The class an op is priced and reported by."""

    MATMUL = "matmul"
    EXPERTS = "experts"
    ATTENTION = "attention"
    RECURRENCE = "recurrence"
    ROWS = "rows"
    COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True)
class Kernel:
    """`ops` run as one, `count` times per step. Widths are elements per row, summed over slots, by their kind of rows.

    read_widths, written_widths: what comes from outside and what is needed after it; {T rows, R rows}.
    """

    kind: KernelKind
    ops: tuple[Op, ...]
    count: int
    read_widths: tuple[int, int]
    written_widths: tuple[int, int]

    def elements_read(self, num_tokens: int, num_logits_rows: int) -> int:
        return self.read_widths[0] * num_tokens + self.read_widths[1] * num_logits_rows

    def elements_written(self, num_tokens: int, num_logits_rows: int) -> int:
        return self.written_widths[0] * num_tokens + self.written_widths[1] * num_logits_rows

    def elements(self, num_tokens: int, num_logits_rows: int) -> int:
        """Of activations, read and written."""
        read, written = (f(num_tokens, num_logits_rows) for f in (self.elements_read, self.elements_written))
        return read + written


def kernel_kind(op: Op) -> KernelKind:
    if isinstance(op, MatMul):
        return KernelKind.MATMUL
    if isinstance(op, Experts):
        return KernelKind.EXPERTS
    if isinstance(op, (Attention, BorrowedAttention, LatentAttention, Index)):
        return KernelKind.ATTENTION
    if isinstance(op, (DeltaRule, StateSpace)):
        return KernelKind.RECURRENCE
    if isinstance(op, (AllReduce, AllGather, Send, Receive)):
        return KernelKind.COLLECTIVE
    return KernelKind.ROWS


Numbered = list[tuple[int, Op]]  # ops with their places in the program
WeightKey = Callable[[str], tuple[str, int]]  # a weight's type and bytes


def kernels_of(program: Program, weight_key: WeightKey, *, norms_heads_apart: bool = False) -> tuple[Kernel, ...]:
    """The program's kernels, equal ones counted. Pure.

    weight_key(name): the weight's type and bytes. norms_heads_apart: norms over heads join no other op.
    """
    return count_kernels(program, _groups(program, weight_key, norms_heads_apart), weight_key)


def count_kernels(
    program: Program, groups: Sequence[tuple[KernelKind, Numbered]], weight_key: WeightKey
) -> tuple[Kernel, ...]:
    """One Kernel for each kind of group, with how many there are. Pure."""
    used_after = _last_reads(program)
    found: dict[object, Kernel] = {}
    counts: Counter[object] = Counter()
    for kind, numbered in groups:
        ops = tuple(op for _, op in numbered)
        inside = {op.out for op in ops}
        last = numbered[-1][0]
        reads = dict.fromkeys(s for op in ops for s in op.reads if s not in inside)
        kept = kind is not KernelKind.ROWS
        writes = [op.out for op in ops if kept or op.out == program.output or used_after.get(op.out, -1) > last]
        kernel = Kernel(kind, ops, 1, _widths(program, reads), _widths(program, writes))
        key = (kind, kernel.read_widths, kernel.written_widths, *(_signature(program, op, weight_key) for op in ops))
        found.setdefault(key, kernel)
        counts[key] += 1
    return tuple(replace(kernel, count=counts[key]) for key, kernel in found.items())


def _groups(program: Program, weight_key: WeightKey, norms_heads_apart: bool) -> list[tuple[KernelKind, Numbered]]:
    """In program order; a product that joins an earlier one, because it reads the same, is computed with it."""
    groups: list[tuple[KernelKind, Numbered]] = []
    products: dict[object, Numbered] = {}
    for number, op in enumerate(program.ops):
        kind = kernel_kind(op)
        if isinstance(op, MatMul):
            key = (op.x, weight_key(op.weight)[0])
            if key in products:
                products[key].append((number, op))
                continue
            products[key] = [(number, op)]
            groups.append((kind, products[key]))
        elif (
            groups and kind is KernelKind.ROWS is groups[-1][0] and _joins(groups[-1][1][-1][1], op, norms_heads_apart)
        ):
            groups[-1][1].append((number, op))
        else:
            groups.append((kind, [(number, op)]))
    return groups


def _joins(before: Op, op: Op, norms_heads_apart: bool) -> bool:
    """Whether neighbours of one kind are one kernel. Choosing experts and choosing rows are kernels of their own."""
    if kernel_kind(op) is not KernelKind.ROWS or isinstance(op, Route) or isinstance(before, (Route, GatherRows)):
        return False
    return not (norms_heads_apart and (_norms_heads(before) or _norms_heads(op)))


def _norms_heads(op: Op) -> bool:
    return isinstance(op, RmsNorm) and ".attn." in op.weight


def _last_reads(program: Program) -> Mapping[str, int]:
    return {slot: number for number, op in enumerate(program.ops) for slot in op.reads}


def _widths(program: Program, slots: Mapping[str, None] | list[str]) -> tuple[int, int]:
    tokens = sum(program.slots[s].width for s in slots if program.slots[s].rows is Rows.TOKENS)
    return tokens, sum(program.slots[s].width for s in slots) - tokens


_PLAIN_FIELDS: dict[type[Op], tuple[str, ...]] = {}  # as they are asked for


def _plain_fields(kind: type[Op]) -> tuple[str, ...]:
    """Fields that name no slot and no weight."""
    if kind not in _PLAIN_FIELDS:
        named = {"out", *kind.slot_fields, *kind.weight_fields}
        _PLAIN_FIELDS[kind] = tuple(f.name for f in fields(kind) if f.name not in named)
    return _PLAIN_FIELDS[kind]


def _signature(program: Program, op: Op, weight_key: WeightKey) -> tuple[object, ...]:
    """All of an op that its cost depends on: names of slots and weights are replaced by what they are."""
    out = program.slots[op.out]
    parts: list[object] = [type(op), out.width, out.rows]
    for name in _plain_fields(type(op)):
        value = getattr(op, name)
        if name == "layer":
            value = program.kv_layers[value]
        elif name == "state":
            value = program.states[value]
        parts.append(value)
    parts.extend((program.slots[slot].width, program.slots[slot].rows) for slot in op.reads)
    parts.extend((program.weights[weight].shape, weight_key(weight)) for weight in op.weights)
    return tuple(parts)
