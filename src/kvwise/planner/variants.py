"""A plan with one setting changed, planned anew by the functions that made it: on devices, here, or of a shape alone.

    on devices      vary_placed; a pricer made anew where bytes or devices change
    here            the ledger's levers, which the engine's own refusals use
    a shape alone   its formula

Knows what can be changed, not what for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Protocol

from kvwise.backends.price.roofline import RooflinePricer
from kvwise.errors import NotMeasured, UsageError
from kvwise.hardware.devices import Placement, devices
from kvwise.ledger.levers import Lever
from kvwise.ledger.memory import MemoryPlan, with_change
from kvwise.ledger.memory import levers as levers_here
from kvwise.planner.latency import Latency, placed_latency
from kvwise.planner.machine import machine_latency
from kvwise.planner.placed import PlacedPlan, vary_placed
from kvwise.planner.plan import Plan
from kvwise.planner.pricing import roofline_pricer
from kvwise.planner.sizes import check_rows_divide, stored_bytes, uniform_types, weight_type
from kvwise.planner.steady_state import Workload
from kvwise.planner.tables import split_context
from kvwise.program.ir import Program, Role
from kvwise.spec.dtypes import TensorType
from kvwise.spec.kv import KV_TYPES
from kvwise.spec.model import ModelSpec
from kvwise.units import ceil_div, format_count

_LEAST_STEP_TOKENS: Final = 16  # as the ledger's
_MOST_TIMES: Final = (2, 4, 8, 16)  # as many devices: from a second one to two machines of eight
_DEVICES_NAMED: Final = 3
# What engines read on each kind of device, large to small: tensor cores' types and groups of 128, or GGUF's blocks.
_WEIGHT_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "gpu": ("bf16", "fp8", "int4_g128"), "tpu": ("bf16", "int8", "int4"), "accelerator": ("bf16", "fp8", "int4_g128"),
    "cpu": ("bf16", "q8_0", "q4_k", "q4_0"), "soc": ("bf16", "q8_0", "q4_k", "q4_0"),
}  # fmt: skip


class Variant(Protocol):
    """A plan that can be changed, one lever at a time."""

    @property
    def fits(self) -> bool: ...

    @property
    def latency(self) -> Latency | None:
        """None where nothing says how long steps take."""
        ...

    def levers(self) -> tuple[Lever, ...]:
        """What can be changed, each towards less memory or time."""
        ...

    def changed(self, lever: str, value: Any) -> Variant:
        """The same with one lever at `value`. Raises UsageError or SpecError where it can't be."""
        ...


def variant_of(plan: Plan) -> Variant:
    """`plan` as it is."""
    output_tokens = None if plan.latency is None else plan.latency.output_tokens
    if plan.placed is not None:
        return PlacedVariant(plan.placed, plan.pricer, output_tokens)
    if plan.memory is not None:
        return LocalVariant(plan.memory, plan.spec, output_tokens)
    return ShapeVariant(plan)


@dataclass(frozen=True)
class PlacedVariant:
    """On devices. pricer: None where the devices' sheets lack what it needs. step_tokens: less than the engine's."""

    placed: PlacedPlan
    pricer: RooflinePricer | None
    output_tokens: int | None

    @property
    def fits(self) -> bool:
        return self.placed.fits

    @cached_property
    def latency(self) -> Latency | None:
        if self.pricer is None:
            return None
        placed = self.placed
        room = max(1, placed.max_requests) * placed.context
        work = _workload(placed.context, self.output_tokens, placed.batch, room)
        has_experts = any(weight.role is Role.EXPERTS for weight in placed.program.weights.values())
        try:
            return placed_latency(self.pricer, work, has_experts=has_experts, turning=False)
        except NotMeasured:
            return None

    def levers(self) -> tuple[Lever, ...]:
        placed, policy = self.placed, self.placed.policy
        block = policy.block_tokens
        step = min(policy.step_tokens, placed.context * placed.batch)
        least_context = block if self.output_tokens is None else self.output_tokens + 1
        shortened = range((ceil_div(placed.context, block) - 1) * block, least_context - 1, -block)
        smaller_blocks = [block >> n for n in range(1, block.bit_length())]
        return (
            Lever("context", shortened, lambda n: f"a context of {format_count(n)} tokens"),
            Lever("batch", range(placed.batch - 1, 0, -1), lambda n: f"{n} request{'s' if n > 1 else ''} at a time"),
            Lever(
                "step_tokens",
                range(step - 1, max(_LEAST_STEP_TOKENS, placed.batch) - 1, -1),
                lambda n: f"at most {format_count(n)} tokens in a step",
            ),
            Lever("block_tokens", smaller_blocks, lambda n: f"blocks of {n} token{'s' if n > 1 else ''}"),
            Lever("kv_dtype", placed.kv.smaller_types(KV_TYPES), lambda name: f"K and V in {name}", by_degrees=False),
            Lever("weights", self._smaller_weights(), lambda name: f"weights in {name}", by_degrees=False),
            Lever("devices", self._more_devices(), lambda p: f"on {p}", by_degrees=False, most=1),
            Lever("device", self._other_devices(), lambda p: f"on {p}", by_degrees=False, most=_DEVICES_NAMED),
        )

    def changed(self, lever: str, value: Any) -> PlacedVariant:
        placed, policy = self.placed, self.placed.policy
        if lever in ("context", "batch"):
            return replace(self, placed=vary_placed(placed, **{lever: value}))
        if lever == "block_tokens":
            return replace(self, placed=vary_placed(placed, policy=replace(policy, block_tokens=value)))
        if lever == "step_tokens":
            return self._with_step(value)
        if lever == "kv_dtype":
            kv_type = KV_TYPES[value]
            return self._priced_anew(vary_placed(placed, kv_type=kv_type), self._types)
        if lever == "weights":
            check_rows_divide(placed.program, weight_type(value))
            types = uniform_types(placed.program, weight_type(value))
            return self._priced_anew(vary_placed(placed, weight_bytes=lambda part: _bytes_of(part, types)), types)
        if lever in ("devices", "device"):
            return self._priced_anew(vary_placed(placed, placement=value), self._types)
        raise UsageError(f"no lever {lever!r}")

    @property
    def _types(self) -> Mapping[str, TensorType] | None:
        return None if self.pricer is None else self.pricer.stages[0].types

    def _with_step(self, tokens: int) -> PlacedVariant:
        """The engine's steps are no larger than those that its memory is planned for."""
        placed = vary_placed(self.placed, policy=replace(self.placed.policy, step_tokens=tokens))
        if self.pricer is None:
            return replace(self, placed=placed)
        engine = replace(self.pricer.engine, max_step_tokens=min(tokens, self.pricer.engine.max_step_tokens))
        return replace(self, placed=placed, pricer=replace(self.pricer, engine=engine))

    def _priced_anew(self, placed: PlacedPlan, types: Mapping[str, TensorType] | None) -> PlacedVariant:
        if self.pricer is None or types is None or not placed.fits:
            return replace(self, placed=placed, pricer=None)
        old = self.pricer
        pricer = roofline_pricer(
            placed.program, types, stored_bytes(placed.program, types), placed.kv, placed.placement, old.engine,
            efficiency=old.efficiency, compute=old.compute,
        )  # fmt: skip
        return replace(self, placed=placed, pricer=pricer)

    def _smaller_weights(self) -> list[str]:
        program = self.placed.program
        now = self.placed.weight_bytes(program)
        return [
            name
            for name in _WEIGHT_TYPES[self.placed.placement.device.kind]
            if _bytes_of(program, uniform_types(program, weight_type(name))) < now
        ]

    def _more_devices(self) -> list[Placement]:
        """More ranks of a stage, then more stages: a matrix in more parts is faster, a longer pipeline is not."""
        now = self.placed.placement
        return [
            *(replace(now, tensor_parallel=now.tensor_parallel * n) for n in _MOST_TIMES),
            *(replace(now, pipeline_parallel=now.pipeline_parallel * n) for n in _MOST_TIMES),
        ]

    def _other_devices(self) -> list[Placement]:
        """As many of another device of the kind: the one with the least memory first."""
        now = self.placed.placement
        others = [
            device
            for device in devices()
            if device.kind == now.device.kind and device.name != now.device.name and device.memory_usable_bytes
        ]
        others.sort(key=lambda device: device.memory_usable_bytes or 0)
        return [replace(now, device=device) for device in others]


@dataclass(frozen=True, slots=True)
class LocalVariant:
    """On this machine, by the ledger."""

    memory: MemoryPlan
    spec: ModelSpec | None
    output_tokens: int | None

    @property
    def fits(self) -> bool:
        return self.memory.fits

    @property
    def latency(self) -> Latency | None:
        limits = self.memory.options.limits
        work = _workload(limits.max_context, self.output_tokens, limits.max_requests)
        try:
            return machine_latency(self.memory, work)
        except NotMeasured:
            return None

    def levers(self) -> tuple[Lever, ...]:
        return levers_here(self.memory, self.spec)

    def changed(self, lever: str, value: Any) -> LocalVariant:
        return replace(self, memory=with_change(self.memory, lever, value, self.spec))


@dataclass(frozen=True, slots=True)
class ShapeVariant:
    """A shape alone: weights and K and V, nothing else is known."""

    plan: Plan

    @property
    def fits(self) -> bool:
        return self.plan.fits

    @property
    def latency(self) -> Latency | None:
        return None

    def levers(self) -> tuple[Lever, ...]:
        plan = self.plan
        kv_types = plan.kv.smaller_types(KV_TYPES) if plan.kv.kv_type.name in KV_TYPES else []
        smaller = [name for name in ("int8", "int4") if self._weights_in(name) < plan.weight_bytes]
        return (
            Lever("context", range(plan.context - 1, 0, -1), lambda n: f"a context of {format_count(n)} tokens"),
            Lever("batch", range(plan.batch - 1, 0, -1), lambda n: f"{n} request{'s' if n > 1 else ''} at a time"),
            Lever("kv_dtype", kv_types, lambda name: f"K and V in {name}", by_degrees=False),
            Lever("weights", smaller, lambda name: f"weights in {name}", by_degrees=False),
        )

    def changed(self, lever: str, value: Any) -> ShapeVariant:
        plan = self.plan
        if lever == "kv_dtype":
            return ShapeVariant(replace(plan, kv=replace(plan.kv, kv_type=KV_TYPES[value])))
        if lever == "weights":
            return ShapeVariant(replace(plan, weight_bytes=self._weights_in(value), weight_type=value))
        return ShapeVariant(replace(plan, **{lever: value}))

    def _weights_in(self, name: str) -> int:
        stored_as = weight_type(name)
        return ceil_div(self.plan.parameters, stored_as.block_elements) * stored_as.block_bytes


def _workload(context: int, output_tokens: int | None, batch: int, cache_tokens: int | None = None) -> Workload:
    """Of a context that is too short for its output the output is cut."""
    output = None if output_tokens is None else min(output_tokens, max(1, context - 1))
    return Workload(*split_context(context, output), batch, cache_tokens)


def _bytes_of(program: Program, types: Mapping[str, TensorType]) -> int:
    return sum(stored_bytes(program, types).values())
