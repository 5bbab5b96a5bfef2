"""Seconds of a step before it runs, on a machine that was measured: its time per byte, by rows and working set.

    matmul      weight bytes x seconds per byte for so many rows, + op_seconds
    experts     likewise, with the bytes that are expected to be read
    attention   KV bytes x seconds per byte for so many queries per KV head, by request, + storing new ones as an op on
                rows + op_seconds; a latent's projections and an index are counted with it
    the rest    activation and state bytes x seconds per byte of such ops on rows, + op_seconds
    a step      the sum of these, pass_seconds for each run of matmuls, attention, or run of ops on many rows (all
                threads are sent to work together), step_seconds, and request_seconds and logit_seconds

The working set of a step is all it reads: weights and KV. Seconds per byte are measured with the arithmetic that goes
with them (planner/probe.py), so that no peak and no efficiency is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvwise.backends.price.kernels import Kernel, KernelKind, Numbered, count_kernels, kernel_kind
from kvwise.backends.price.step import PartPrice, StepPrice, by_tokens, join_by_kind
from kvwise.hardware.profile import DeviceProfile
from kvwise.program.collective import TakeShard
from kvwise.program.cost import OpCost, op_cost
from kvwise.program.ir import (
    Add,
    Attention,
    Embed,
    GatherRows,
    MatMul,
    Narrow,
    Op,
    Program,
    Quantize,
    RmsNorm,
    Rope,
    Rows,
    SlotType,
)
from kvwise.program.special import (
    BorrowedAttention,
    Experts,
    GroupRmsNorm,
    Index,
    LatentAttention,
    LayerNorm,
    PlainRmsNorm,
    Positions,
)
from kvwise.spec.dtypes import TensorType
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.shape import StepShape

_Costs = list[tuple[Kernel, list[tuple[Op, OpCost]]]]
AttentionOp = Attention | BorrowedAttention | LatentAttention | Index
_THREADED: Final = (KernelKind.MATMUL, KernelKind.EXPERTS, KernelKind.ATTENTION)
_KEPT_SIZES: Final = 4096
# Which op on rows each of them is like, by what it does to an element. A profile's keys; not here: as slow as any.
NORM, ADD, ROPE, QUANTIZE, GLU = "norm", "add", "rope", "quantize", "glu"
ROW_KINDS: Final[Mapping[type[Op], str]] = {
    RmsNorm: NORM, PlainRmsNorm: NORM, GroupRmsNorm: NORM, LayerNorm: NORM, Rope: ROPE,
    Quantize: QUANTIZE, Narrow: QUANTIZE,
    Add: ADD, Embed: ADD, Positions: ADD, GatherRows: ADD, TakeShard: ADD,
}  # fmt: skip
# From so many bytes on the native backend shares ops on rows out among the threads (kInlineBytes in model_run.cpp).
SHARED_BYTES: Final = 48 * 1024
_F32_BYTES: Final = 4
_STORE: Final = 3  # bytes read and written for each byte of K and V that is stored: 32 bits become 16, in another order


def matmul_kind(program: Program, op: MatMul | Experts, types: Mapping[str, TensorType]) -> str:
    """Which arithmetic a matmul is: the weight's type, marked where its activations are q8 or q8x2. A profile's key."""
    name = types[op.weight if isinstance(op, MatMul) else op.up].name
    kind = program.slots[op.x].type
    return name if kind is SlotType.F32 else f"{name}*{kind.value}"


def attention_kind(op: AttentionOp, kv: KVCacheSpec) -> str:
    """Which reading of K and V an attention is: their type and a head's width. A profile's key."""
    return f"kv {kv.kv_type.name} x {kv.layers[op.layer].k_dim}"


def stream_kinds(program: Program, types: Mapping[str, TensorType], kv: KVCacheSpec) -> list[str]:
    """What a profile must know of to price `program`."""
    matmuls = {matmul_kind(program, op, types) for op in program.ops if isinstance(op, (MatMul, Experts))}
    return sorted(matmuls) + sorted({attention_kind(op, kv) for op in program.ops if isinstance(op, AttentionOp)})


def queries_per_position(op: AttentionOp, cost: OpCost, kv: KVCacheSpec) -> float:
    """Queries that each position of a KV head meets, in the mean of what is read: from FLOPs per KV byte."""
    kept = kv.layers[op.layer]
    width = kept.k_dim + kept.v_dim
    return cost.flops / max(1, cost.kv_read_bytes) * kv.kv_type.token_bytes(1, kept.k_dim, kept.v_dim) / (2 * width)


@dataclass(frozen=True)
class Pricer:
    """Prices steps of one lowered program; a StepPricer. `weight_bytes`, `types`: as the backend holds and reads them.

    Methods raise NotMeasured when the profile lacks a figure that the program needs.
    """

    program: Program
    kv: KVCacheSpec
    weight_bytes: Mapping[str, int]
    types: Mapping[str, TensorType]
    profile: DeviceProfile
    _regions: tuple[Kernel, ...] = field(init=False, repr=False)
    _costs: dict[tuple[int, int], _Costs] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_regions", count_kernels(self.program, _regions(self.program), self._weight_key))

    def price(self, shape: StepShape) -> StepPrice:
        attention = [(r, self._cost(r, shape)) for r in self._regions if r.kind is KernelKind.ATTENTION]
        rest = self._sized(shape)
        read = sum(region.count * cost.kv_read_bytes for region, cost in attention)
        read += sum(region.count * cost.weight_bytes for region, costs in rest for _, cost in costs)
        working_set = _rounded(read)
        parts = [self._priced(region, costs, shape, working_set) for region, costs in rest]
        parts += [self._attended(region, cost, shape, working_set) for region, cost in attention]
        joined = join_by_kind(parts)
        overhead_s = self._overhead_s(shape)
        seconds = sum(part.seconds for part in joined) + overhead_s
        return StepPrice(joined, overhead_s, seconds, sum((part.cost for part in joined), OpCost()))

    def seconds(self, shape: StepShape) -> float:
        return self.price(shape).predicted_seconds

    def _weight_key(self, name: str) -> tuple[str, int]:
        return self.types[name].name, self.weight_bytes[name]

    def _op_cost(self, op: Op, shape: StepShape) -> OpCost:
        return op_cost(self.program, op, shape, self.kv, self.weight_bytes.__getitem__)

    def _cost(self, region: Kernel, shape: StepShape) -> OpCost:
        return self._op_cost(region.ops[0], shape)

    def _sized(self, shape: StepShape) -> _Costs:
        """Costs of all but attention: they depend on a step's size alone, and are kept."""
        size = (shape.num_tokens, shape.num_logits_rows)
        if size not in self._costs:
            if len(self._costs) >= _KEPT_SIZES:
                self._costs.clear()
            self._costs[size] = [
                (region, [(op, self._op_cost(op, shape)) for op in region.ops])
                for region in self._regions
                if region.kind is not KernelKind.ATTENTION
            ]
        return self._costs[size]

    def _priced(
        self, region: Kernel, costs: Sequence[tuple[Op, OpCost]], shape: StepShape, working_set: float
    ) -> PartPrice:
        memory_s = arithmetic_s = moving_s = 0.0
        for op, cost in costs:
            if isinstance(op, (MatMul, Experts)):
                figures = self.profile.stream(matmul_kind(self.program, op, self.types))
                rows = self._rows(op, shape)
                memory_s += cost.weight_bytes * figures.seconds_per_byte(1, working_set)
                arithmetic_s += cost.weight_bytes * figures.seconds_per_byte(rows, 0)
                moving_s += cost.weight_bytes * figures.seconds_per_byte(rows, working_set)
            else:
                moved = cost.activation_bytes + cost.state_bytes + cost.weight_bytes
                seconds = self.profile.row_seconds(ROW_KINDS.get(type(op), GLU), moved)
                memory_s += seconds
                moving_s += seconds
        if region.kind is KernelKind.ROWS:  # what another core has just written comes as if from memory
            handed = _F32_BYTES * region.elements_read(shape.num_tokens, shape.num_logits_rows)
            handed_s = handed * self.profile.memory_seconds_per_byte
            memory_s, moving_s = memory_s + handed_s, moving_s + handed_s
        total = sum((cost for _, cost in costs), OpCost())
        shared = region.kind in _THREADED or total.activation_bytes > SHARED_BYTES * 2
        return self._part(region, total, memory_s, arithmetic_s, moving_s, shared=shared)

    def _rows(self, op: MatMul | Experts, shape: StepShape) -> float:
        """Rows that each weight is multiplied with; of experts, in the mean of those that are read."""
        rows = shape.num_tokens if self.program.slots[op.x].rows is Rows.TOKENS else shape.num_logits_rows
        if isinstance(op, MatMul):
            return rows
        experts = self.program.weights[op.up].shape[0]
        return max(1.0, rows * op.top_k / experts)

    def _attended(self, region: Kernel, cost: OpCost, shape: StepShape, working_set: float) -> PartPrice:
        op = region.ops[0]
        assert isinstance(op, AttentionOp)
        figures = self.profile.stream(attention_kind(op, self.kv))
        memory_s = arithmetic_s = moving_s = 0.0
        for group in by_tokens(shape):
            its = cost if group is shape else self._cost(region, group)
            moved = its.kv_read_bytes + its.weight_bytes
            queries = queries_per_position(op, its, self.kv)
            memory_s += moved * figures.seconds_per_byte(1, working_set)
            arithmetic_s += moved * figures.seconds_per_byte(queries, 0)
            moving_s += moved * figures.seconds_per_byte(queries, working_set)
        stored_s = self.profile.row_seconds(GLU, _STORE * cost.kv_write_bytes)
        memory_s, moving_s = memory_s + stored_s, moving_s + stored_s
        return self._part(region, cost, memory_s, arithmetic_s, moving_s, shared=True)

    def _part(
        self,
        region: Kernel,
        cost: OpCost,
        memory_s: float,
        arithmetic_s: float,
        moving_s: float,
        *,
        shared: bool,
    ) -> PartPrice:
        """shared: among the threads."""
        n = region.count
        fixed_s = self.profile.figure("op_seconds") * len(region.ops)
        fixed_s += self.profile.figure("pass_seconds") if shared else 0.0
        seconds = moving_s + fixed_s
        return PartPrice(region.kind, n, cost.times(n), n * memory_s, n * arithmetic_s, n * fixed_s, n * seconds)

    def _overhead_s(self, shape: StepShape) -> float:
        profile = self.profile
        logits = shape.num_logits_rows * self.program.slots[self.program.output].width
        return (
            profile.figure("step_seconds")
            + profile.figure("request_seconds") * (len(shape.queries) - 1)
            + profile.figure("logit_seconds") * logits
        )


def _rounded(working_set: float) -> float:
    """To a quarter of an octave, so that prices of decodes lie on lines while contexts grow within it."""
    return 0.0 if working_set <= 1 else float(2 ** (round(4 * math.log2(working_set)) / 4))


def _regions(program: Program) -> list[tuple[KernelKind, Numbered]]:
    """Runs of matmuls, and of ops on rows, are each one pass over the threads."""
    groups: list[tuple[KernelKind, Numbered]] = []
    for number, op in enumerate(program.ops):
        kind = kernel_kind(op)
        before = groups[-1] if groups else None
        if before is not None and _one_pass(before, kind, op):
            before[1].append((number, op))
        else:
            groups.append((kind, [(number, op)]))
    return groups


def _one_pass(before: tuple[KernelKind, Numbered], kind: KernelKind, op: Op) -> bool:
    """Neighbours on rows; neighbouring matmuls of which none waits for another."""
    if before[0] is not kind or kind not in (KernelKind.MATMUL, KernelKind.ROWS):
        return False
    return kind is KernelKind.ROWS or not {other.out for _, other in before[1]} & set(op.reads)
