"""A model on one or several devices: the bytes that each holds, and how much fits beside its weights.

    weights      a rank's share of the stage's matrices, tables and vectors
    kv_pool      `batch` requests of `context` tokens, in the stage's layers and the rank's heads
    states       what each request holds once
    arena        activations of a step of the policy's size
    logits       in the last stage
    runtime      of the device; graphs: recorded steps; workspaces of libraries; collectives: buffers among devices

Ranks of a stage are equal, so a device is a stage. A placement fits when its fullest device does. Reads no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

from kvwise.errors import UsageError
from kvwise.hardware.devices import Placement
from kvwise.ledger.rows import LedgerRow, sum_predicted
from kvwise.planner.policy import Policy
from kvwise.program.arena import Arena, plan_arena
from kvwise.program.ir import MatMul, Program, Role
from kvwise.program.shard import shard_program
from kvwise.program.stages import split_stages, stage_layers
from kvwise.spec.kv import KVCacheSpec, KVType
from kvwise.spec.shape import StepLimits
from kvwise.units import format_bytes, format_count

WeightBytes = Callable[[Program], int]  # of a rank's program


@dataclass(frozen=True, slots=True)
class Part:
    """A stage as one of its equal ranks runs it, with what does not change with context and batch.

    weights: bytes; tables: of them in tables of embeddings, looked_up: in those that nothing multiplies by. Arenas are
    kept once they are laid out: sweeps ask for the same ones again and again.
    """

    program: Program
    num_layers: int
    weights: int
    tables: int
    looked_up: int
    _arenas: dict[tuple[int, int], Arena] = field(default_factory=dict, repr=False, compare=False)

    def arena(self, limits: StepLimits) -> Arena:
        key = (limits.max_tokens, limits.max_logits_rows)
        if key not in self._arenas:
            self._arenas[key] = plan_arena(self.program, limits)
        return self._arenas[key]


@dataclass(frozen=True, slots=True)
class Stage:
    """Each device of a stage: what it holds, of what there is. `kv`: the rank's heads of the stage's layers.

    held_bytes: of one request of the context asked for; logits_row_bytes: of one more row.
    """

    part: Part
    kv: KVCacheSpec
    rows: tuple[LedgerRow, ...]
    batch: int
    held_bytes: int
    logits_row_bytes: int
    budget_bytes: int
    policy: Policy

    @property
    def program(self) -> Program:
        return self.part.program

    @property
    def num_layers(self) -> int:
        return self.part.num_layers

    @property
    def total_bytes(self) -> int:
        return sum_predicted(self.rows)

    @property
    def reserve_bytes(self) -> int:
        return self.policy.reserve(self.total_bytes)

    @property
    def free_bytes(self) -> int:
        """Left of the budget beside everything and the reserve; negative where it does not fit."""
        return self.budget_bytes - self.total_bytes - self.reserve_bytes

    @property
    def fits(self) -> bool:
        return self.free_bytes >= 0

    @property
    def max_requests(self) -> int:
        """How many requests of this context have room at once, in steps of this size."""
        each = self.held_bytes + self.logits_row_bytes
        rest = self.total_bytes - self.batch * each
        high = max(0, self.budget_bytes - rest) // max(1, each)
        while high and rest + high * each + self.policy.reserve(rest + high * each) > self.budget_bytes:
            over = rest + high * each + self.policy.reserve(rest + high * each) - self.budget_bytes
            high = max(0, high - max(1, int(over / each / (1 + self.policy.reserve_fraction))))
        return high

    def row(self, name: str) -> int:
        return sum(int(row.predicted or 0) for row in self.rows if row.name == name)

    def to_json(self) -> dict[str, object]:
        return {
            "layers": self.num_layers,
            "parameters": self.program.num_parameters,
            "kv_bytes_per_token": self.kv.bytes_per_token,
            "ledger": [row.to_json() for row in self.rows],
            "total_bytes": self.total_bytes,
            "reserve_bytes": self.reserve_bytes,
            "budget_bytes": self.budget_bytes,
            "free_bytes": self.free_bytes,
            "fits": self.fits,
            "max_requests": self.max_requests,
        }


@dataclass(frozen=True, slots=True)
class PlacedPlan:
    """A model on the devices of `placement`: one Stage for each of its stages, in order.

    The fields it was made from are kept, so that it can be varied: the whole model's program and cache.
    """

    placement: Placement
    policy: Policy
    stages: tuple[Stage, ...]
    program: Program = field(repr=False)
    weight_bytes: WeightBytes = field(repr=False, compare=False)
    kv: KVCacheSpec
    context: int
    batch: int
    memory_limit: int | None

    @property
    def fullest(self) -> Stage:
        """The one that decides whether it fits."""
        return min(self.stages, key=lambda stage: stage.free_bytes)

    @property
    def fits(self) -> bool:
        return self.fullest.fits

    @property
    def max_requests(self) -> int:
        """How many requests of the context asked for have room at once."""
        return min(stage.max_requests for stage in self.stages)

    @property
    def host_bytes(self) -> int:
        """Held by the machine that the devices are in: tables of embeddings, where the policy keeps them there."""
        return self.stages[0].part.tables if self.policy.embedding_on_host else 0

    @property
    def arithmetic(self) -> str:
        """What the fullest device needs, part by part."""
        stage = self.fullest
        rows = " + ".join(f"{row.label} {row.format_value(row.predicted)}" for row in stage.rows)
        return (
            f"each of {self.placement.num_devices} x {self.placement.device.name} needs "
            f"{format_bytes(stage.total_bytes + stage.reserve_bytes)}: {rows} + "
            f"{format_bytes(stage.reserve_bytes)} in reserve"
        )

    def to_json(self) -> dict[str, object]:
        placement, device = self.placement, self.placement.device
        return {
            "device": device.name,
            "tensor_parallel": placement.tensor_parallel,
            "pipeline_parallel": placement.pipeline_parallel,
            "policy": asdict(self.policy),
            "memory_rule": device.memory_rule,
            "host_bytes": self.host_bytes,
            "fits": self.fits,
            "max_requests": self.max_requests,
            "stages": [stage.to_json() for stage in self.stages],
        }


def place_program(program: Program, placement: Placement) -> tuple[Program, ...]:
    """The programs of the placement's stages, each as one of its equal ranks runs it. Raises UsageError."""
    return split_stages(shard_program(program, placement.tensor_parallel), placement.pipeline_parallel)


def plan_placed(
    program: Program,
    weight_bytes: WeightBytes,
    kv: KVCacheSpec,
    placement: Placement,
    policy: Policy,
    *,
    context: int,
    batch: int,
    memory_limit: int | None = None,
) -> PlacedPlan:
    """The plan for `batch` requests of `context` tokens. `kv` is the whole model's. Pure.

    memory_limit: of each device, instead of more. Raises UsageError for what can't be split so, and for a device whose
    memory is not known without a limit.
    """
    parts = _parts(program, placement, weight_bytes)
    return _plan_parts(parts, program, weight_bytes, kv, placement, policy, context, batch, memory_limit)


def vary_placed(
    plan: PlacedPlan,
    *,
    weight_bytes: WeightBytes | None = None,
    kv_type: KVType | None = None,
    placement: Placement | None = None,
    policy: Policy | None = None,
    context: int | None = None,
    batch: int | None = None,
) -> PlacedPlan:
    """The same plan with something changed, computed anew. Raises as plan_placed."""
    wanted = placement or plan.placement
    cut_alike = (wanted.tensor_parallel, wanted.pipeline_parallel) == (
        plan.placement.tensor_parallel,
        plan.placement.pipeline_parallel,
    )
    if cut_alike and weight_bytes is None:
        parts = tuple(stage.part for stage in plan.stages)
    else:
        parts = _parts(plan.program, wanted, weight_bytes or plan.weight_bytes)
    return _plan_parts(
        parts,
        plan.program,
        weight_bytes or plan.weight_bytes,
        plan.kv if kv_type is None else replace(plan.kv, kv_type=kv_type),
        wanted,
        policy or plan.policy,
        context or plan.context,
        batch or plan.batch,
        plan.memory_limit,
    )


def _parts(program: Program, placement: Placement, weight_bytes: WeightBytes) -> tuple[Part, ...]:
    cut = place_program(program, placement)
    layers = {int(op.out.split(".")[1]) for op in program.ops if op.out.startswith("layers.")}
    spread = stage_layers(len(layers), placement.pipeline_parallel)
    return tuple(_part(part, n, weight_bytes) for part, n in zip(cut, spread, strict=True))


def _part(program: Program, num_layers: int, weight_bytes: WeightBytes) -> Part:
    tables = {name for name, weight in program.weights.items() if weight.role is Role.EMBEDDING}
    multiplied = {name for op in program.ops if isinstance(op, MatMul) for name in op.weights}

    def without(left_out: set[str]) -> int:
        kept = {name: weight for name, weight in program.weights.items() if name not in left_out}
        return weight_bytes(replace(program, weights=kept))

    total = weight_bytes(program)
    return Part(program, num_layers, total, total - without(tables), total - without(tables - multiplied))


def _plan_parts(
    parts: Sequence[Part],
    program: Program,
    weight_bytes: WeightBytes,
    kv: KVCacheSpec,
    placement: Placement,
    policy: Policy,
    context: int,
    batch: int,
    memory_limit: int | None,
) -> PlacedPlan:
    usable = _usable_bytes(placement, memory_limit)
    stages = []
    for part in parts:
        cut = part.program
        its_kv = KVCacheSpec(cut.kv_layers, kv.kv_type, policy.block_tokens, cut.states)
        stages.append(_stage(part, its_kv, usable, placement, policy, context, batch))
    return PlacedPlan(placement, policy, tuple(stages), program, weight_bytes, kv, context, batch, memory_limit)


def _stage(
    part: Part,
    kv: KVCacheSpec,
    usable: int,
    placement: Placement,
    policy: Policy,
    context: int,
    batch: int,
) -> Stage:
    asked = policy.step_tokens if policy.full_step else min(policy.step_tokens, context * batch)
    step_tokens = max(asked, batch)
    logits_rows = policy.logits_rows or batch
    arena = part.arena(StepLimits(step_tokens, logits_rows, batch, context))
    held = policy.held_bytes(kv, context)
    states = kv.state_bytes_per_request
    logits_row = (
        0
        if policy.logits_rows or policy.arena_bytes is not None
        else part.program.slots[part.program.output].width * policy.logits_bytes
    )
    weights = part.weights - (part.looked_up if policy.embedding_on_host else 0)
    parts = (
        ("weights", weights, "formula: shares of the tensor list"),
        ("kv_pool", batch * (held - states), f"formula: {format_count(batch)} x {format_count(context)} tokens"),
        ("states", batch * states, f"formula: {format_count(batch)} requests"),
        *_activations(arena, policy, step_tokens, logits_rows),
        ("runtime", policy.runtime_bytes if placement.device.kind == "gpu" else 0, f"policy {policy.name}"),
        ("graphs", policy.graph_bytes, f"policy {policy.name}"),
        ("workspaces", policy.workspace_bytes, f"policy {policy.name}"),
        ("collectives", policy.collective_bytes if placement.num_devices > 1 else 0, f"policy {policy.name}"),
    )
    rows = tuple(LedgerRow(name, nbytes, None, "B", source) for name, nbytes, source in parts if nbytes)
    budget = policy.budget(usable, {name: nbytes for name, nbytes, _ in parts})
    return Stage(part, kv, rows, batch, held, logits_row, budget, policy)


def _activations(arena: Arena, policy: Policy, step_tokens: int, logits_rows: int) -> Sequence[tuple[str, int, str]]:
    """Rows of the arena, which lays elements out in 4 bytes, and of logits."""
    if policy.arena_bytes is not None:
        return ("arena", policy.arena_bytes, "as it was set"), ("logits", 0, "")
    return (
        ("arena", arena.total_bytes // 4 * policy.activation_bytes, f"formula: lifetimes x {step_tokens} tokens"),
        ("logits", arena.logits_bytes // 4 * policy.logits_bytes, f"formula: {logits_rows} rows"),
    )


def _usable_bytes(placement: Placement, memory_limit: int | None) -> int:
    """What programs may fill of each device, or the limit where that is less."""
    device = placement.device
    if device.memory_usable_bytes is None:
        if memory_limit is None:
            raise UsageError(
                f"the memory of {device.name} is {device.memory_rule}", expected="a limit: --memory 256GiB"
            )
        return memory_limit
    return device.memory_usable_bytes if memory_limit is None else min(device.memory_usable_bytes, memory_limit)
