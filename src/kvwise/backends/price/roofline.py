"""Seconds of a step on a device that is only known by its data sheet, under a serving engine.

A step is the sum of its kernels (kernels.py, kernel_time.py), through all stages of a pipeline, but no less than the
host takes to launch what no graph launches; and the engine's own time. Attention and recurrences are taken apart by
requests that compute one token and those that compute several: the former are bound by bytes, the latter by
arithmetic, and one does not hide the other. Roofline: Williams et al., CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final

from kvwise.backends.price.efficiency import EXPECTED, Efficiency
from kvwise.backends.price.engines import EngineTiming
from kvwise.backends.price.kernel_time import KernelClock, KernelTime
from kvwise.backends.price.kernels import Kernel, KernelKind, kernels_of
from kvwise.backends.price.step import PartPrice, StepPrice, by_tokens, join_by_kind
from kvwise.frozen import dataclass
from kvwise.hardware.devices import Placement
from kvwise.program.collective import AllGather, AllReduce, Send
from kvwise.program.cost import OpCost, op_cost
from kvwise.program.ir import MatMul, Program
from kvwise.program.special import Experts
from kvwise.spec.dtypes import TensorType
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.shape import StepShape

_BY_REQUEST: Final = (KernelKind.ATTENTION, KernelKind.RECURRENCE)
_KEPT_SIZES: Final = 4096  # of a pricer's memory: steps of as many tokens come again and again


@dataclass(frozen=True, slots=True)
class Stage:
    """What one device of a pipeline's stage computes: a (sharded) program, its K and V, its weights as stored."""

    program: Program
    kv: KVCacheSpec
    weight_bytes: Mapping[str, int]
    types: Mapping[str, TensorType]

    def kernels(self, engine: EngineTiming) -> tuple[Kernel, ...]:
        def key(name: str) -> tuple[str, int]:
            return self.types[name].name, self.weight_bytes[name]

        return kernels_of(self.program, key, norms_heads_apart=engine.norms_heads_apart)

    def cost(self, kernel: Kernel, shape: StepShape) -> OpCost:
        """Of one of `kernel.count`."""
        total = OpCost()
        for op in kernel.ops:
            cost = op_cost(self.program, op, shape, self.kv, self.weight_bytes.__getitem__)
            total = cost if len(kernel.ops) == 1 else total + cost
        return total


@dataclass(frozen=True)
class RooflinePricer:
    """Prices steps of one model on a placement; a StepPricer. `stages`: one for each stage of the pipeline.

    `compute`: multiply all weights in this type instead of in the one that goes with theirs. Methods raise
    NotMeasured where the device's sheet lacks what they need.
    """

    stages: Sequence[Stage]
    placement: Placement
    engine: EngineTiming
    efficiency: Efficiency = EXPECTED
    compute: str | None = None
    _clock: KernelClock = field(init=False, repr=False)
    _kernels: Sequence[tuple[Stage, Kernel]] = field(init=False, repr=False)
    _launch_s: float = field(init=False, repr=False)
    _by_size: dict[tuple[int, int], tuple[tuple[PartPrice, ...], float]] = field(
        init=False, repr=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        kernels = [(stage, kernel) for stage in self.stages for kernel in stage.kernels(self.engine)]
        clock = KernelClock(self.placement.device, self.engine, self.efficiency, self.compute)
        launches = sum(kernel.count for _, kernel in kernels)
        for name, value in (("_clock", clock), ("_kernels", kernels), ("_launch_s", launches * self.engine.eager_op_s)):
            object.__setattr__(self, name, value)

    def price(self, shape: StepShape) -> StepPrice:
        parts = list(self._sized(shape)[0])
        parts += [self._priced(stage, kernel, shape) for stage, kernel in self._kernels if kernel.kind in _BY_REQUEST]
        joined = join_by_kind(parts)
        busy_s = sum(part.seconds for part in joined)
        overhead_s = self._overhead_s(shape, busy_s)
        return StepPrice(joined, overhead_s, busy_s + overhead_s, sum((p.cost for p in joined), OpCost()))

    def seconds(self, shape: StepShape) -> float:
        busy_s = self._sized(shape)[1]
        groups = tuple(by_tokens(shape))
        for stage, kernel in self._kernels:
            if kernel.kind in _BY_REQUEST:
                times = (self._time(stage, kernel, group)[1].seconds for group in groups)
                busy_s += kernel.count * (sum(times) + self._start_s(kernel))
        return busy_s + self._overhead_s(shape, busy_s)

    def _sized(self, shape: StepShape) -> tuple[tuple[PartPrice, ...], float]:
        """What depends on no request's context: parts, and their seconds. Kept, for it comes again and again."""
        size = (shape.num_tokens, shape.num_logits_rows)
        if size not in self._by_size:
            rest = [(stage, kernel) for stage, kernel in self._kernels if kernel.kind not in _BY_REQUEST]
            parts = join_by_kind([self._priced(stage, kernel, shape) for stage, kernel in rest])
            if len(self._by_size) >= _KEPT_SIZES:
                self._by_size.clear()
            self._by_size[size] = parts, sum(part.seconds for part in parts)
        return self._by_size[size]

    def _overhead_s(self, shape: StepShape, busy_s: float) -> float:
        launched_s = 0.0 if shape.num_tokens == len(shape.queries) else self._launch_s  # graphs launch decodes
        return max(0.0, launched_s - busy_s) + self.engine.step_s + self.engine.request_s * len(shape.queries)

    def _priced(self, stage: Stage, kernel: Kernel, shape: StepShape) -> PartPrice:
        groups = by_tokens(shape) if kernel.kind in _BY_REQUEST else (shape,)
        priced = [self._time(stage, kernel, group) for group in groups]
        n, start_s = kernel.count, self._start_s(kernel)
        cost = sum((cost for cost, _ in priced), OpCost())
        memory_s, arithmetic_s, fixed_s, seconds = (sum(column) for column in zip(*(t for _, t in priced), strict=True))
        return PartPrice(
            kernel.kind, n, cost.times(n), n * memory_s, n * arithmetic_s, n * (fixed_s + start_s),
            n * (seconds + start_s),
        )  # fmt: skip

    def _start_s(self, kernel: Kernel) -> float:
        """Of kernels that are started once for all groups of requests."""
        if kernel.kind is KernelKind.ATTENTION:
            return self._clock.attention_fixed_s
        return self.efficiency.kernel_s if kernel.kind is KernelKind.RECURRENCE else 0.0

    def _time(self, stage: Stage, kernel: Kernel, shape: StepShape) -> tuple[OpCost, KernelTime]:
        """Of one of the kernel, on `shape` or a group of its requests."""
        clock, op = self._clock, kernel.ops[0]
        cost = stage.cost(kernel, shape)
        tokens, rows = shape.num_tokens, shape.num_logits_rows
        elements = kernel.elements(tokens, rows)
        if isinstance(op, MatMul):
            return cost, clock.matmul(stage.types[op.weight].name, cost, kernel.elements_read(tokens, rows), elements)
        if isinstance(op, Experts):
            return cost, clock.experts(stage.types[op.up].name, cost, elements)
        if kernel.kind in _BY_REQUEST:
            return cost, clock.attention(cost, elements)
        if isinstance(op, AllReduce):
            return cost, clock.all_reduce(kernel.elements_read(tokens, rows), op.ranks)
        if isinstance(op, AllGather):
            return cost, clock.all_gather(kernel.elements_written(tokens, rows), op.ranks)
        if isinstance(op, Send):
            return cost, clock.send(kernel.elements_read(tokens, rows), self.placement.num_devices)
        if kernel.kind is KernelKind.COLLECTIVE:  # waiting for what the stage before sent
            return cost, KernelTime(0.0, 0.0, 0.0, 0.0)
        return cost, clock.rows(cost, elements)
