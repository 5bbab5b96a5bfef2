"""Seconds of a step before it runs: each op is bound by the bytes it moves or by its arithmetic, plus fixed costs.

    matmul      max(weight bytes / bandwidth[kind](working set), FLOPs / flops[kind]) + op_seconds
    experts     likewise, with the bytes that are expected to be read
    attention   max(KV bytes / attention bandwidth, FLOPs / attention arithmetic) + op_seconds; a latent's projections
                and an index are counted with it
    recurrence  max(state bytes / elementwise bandwidth, FLOPs / attention arithmetic) + op_seconds
    the rest    activation bytes / elementwise bandwidth + op_seconds

The working set of a step is all it reads: weights and KV. Roofline: Williams et al., CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvwise.hardware.profile import DeviceProfile
from kvwise.program.cost import OpCost, cost_of
from kvwise.program.ir import Attention, MatMul, Op, Program, SlotType
from kvwise.program.special import BorrowedAttention, DeltaRule, Experts, Index, LatentAttention, StateSpace
from kvwise.spec.dtypes import TensorType
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.shape import StepShape


@dataclass(frozen=True, slots=True)
class OpPrice:
    """`bound` says which limit holds: 'memory' or 'arithmetic'."""

    op: Op
    cost: OpCost
    seconds: float
    bound: str


@dataclass(frozen=True, slots=True)
class StepPrice:
    ops: tuple[OpPrice, ...]
    predicted_seconds: float
    cost: OpCost


def matmul_kind(program: Program, op: MatMul | Experts, types: Mapping[str, TensorType]) -> str:
    """Which arithmetic a matmul is: the weight's type, marked where its activations are q8. A profile's key."""
    name = types[op.weight if isinstance(op, MatMul) else op.up].name
    return f"{name}*q8" if program.slots[op.x].type is SlotType.Q8 else name


@dataclass(frozen=True, slots=True)
class Pricer:
    """Prices steps of one lowered program. `weight_bytes` and `types` are as the backend holds and reads them."""

    program: Program
    kv: KVCacheSpec
    weight_bytes: Mapping[str, int]
    types: Mapping[str, TensorType]
    profile: DeviceProfile

    def price(self, shape: StepShape) -> StepPrice:
        """Pure. Raises NotMeasured when the profile lacks a figure that this program needs."""
        cost = cost_of(self.program, shape, self.kv, self.weight_bytes.__getitem__)
        working_set = cost.total.weight_bytes + cost.total.kv_read_bytes
        ops: list[OpPrice] = []
        for op, op_cost in cost.ops:
            joins = isinstance(op, MatMul) and bool(ops) and isinstance(ops[-1].op, MatMul)
            ops.append(self._price_op(op, op_cost, working_set, joins_pass=joins))
        seconds = self.profile.figure("step_seconds") + sum(p.seconds for p in ops)
        return StepPrice(tuple(ops), seconds, cost.total)

    def _price_op(self, op: Op, cost: OpCost, working_set: int, *, joins_pass: bool) -> OpPrice:
        profile = self.profile
        arithmetic_s = 0.0
        fixed_s = profile.figure("op_seconds") + (0.0 if joins_pass else profile.figure("pass_seconds"))
        if isinstance(op, (MatMul, Experts)):
            figures = profile.matmul(matmul_kind(self.program, op, self.types))
            memory_s = cost.weight_bytes / figures.bandwidth(working_set)
            arithmetic_s = cost.flops / figures.flops
        elif isinstance(op, (Attention, BorrowedAttention, LatentAttention, Index)):
            moved = cost.kv_read_bytes + cost.kv_write_bytes + cost.weight_bytes
            memory_s = moved / profile.figure("attention_bandwidth")
            arithmetic_s = cost.flops / profile.figure("attention_flops")
        elif isinstance(op, (DeltaRule, StateSpace)):
            memory_s = (cost.state_bytes + cost.activation_bytes) / profile.figure("elementwise_bandwidth")
            arithmetic_s = cost.flops / profile.figure("attention_flops")
        else:
            memory_s = (cost.activation_bytes + cost.weight_bytes) / profile.figure("elementwise_bandwidth")
            fixed_s = profile.figure("op_seconds")  # few rows are not worth a pass, many hide it
        bound = "arithmetic" if arithmetic_s > memory_s else "memory"
        return OpPrice(op, cost, max(memory_s, arithmetic_s) + fixed_s, bound)
