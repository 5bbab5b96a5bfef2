"""The memory plan: every byte that a loaded model will hold, before a weight is read, and whether it fits.

    total = weights + KV pool + states + arena + logits + tables     what the backend says it will allocate
          + runtime                                         resident before loading, measured; and what is yet to come
    it fits when   total + allowed residual <= budget
    budget = min( available now + runtime, a limit that the user set )      `available` no longer has the runtime in it

Owns the arithmetic and the search for changes that would make a plan fit. Allocates nothing; pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kvwise.errors import DoesNotFit, SpecError
from kvwise.frozen import dataclass
from kvwise.ledger.host import HostMemory
from kvwise.ledger.levers import Change, Lever, changes_that, format_advice
from kvwise.ledger.residency import Reading, process_resident_bytes, resident_bytes
from kvwise.ledger.rows import LedgerRow, largest_residual_bytes, residual_row
from kvwise.models import build_program
from kvwise.program.ir import Program, Role
from kvwise.spec.dtypes import TENSOR_TYPES, TensorType
from kvwise.spec.kv import KV_TYPES, KVCacheSpec
from kvwise.spec.model import ModelSpec
from kvwise.units import ceil_div, format_bytes, format_count

if TYPE_CHECKING:
    from kvwise.backends.protocol import Backend, Buffer, LoadOptions, MemoryNeeds

_SMALLEST_STEP_TOKENS: Final = 16  # one block: below it a prefill reads all weights for less than a block of K and V
_WEIGHT_TYPES_TRIED: Final = ("bf16", "q8_0", "q4_0")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What will be held, and what there is for it. The fields it was made from are kept, so that it can be varied."""

    program: Program
    types: Mapping[str, TensorType]
    kv: KVCacheSpec
    options: LoadOptions
    backend: Backend
    runtime_bytes: int
    host: HostMemory
    memory_limit: int | None
    needs: MemoryNeeds
    growth_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.needs.total_bytes + self.predicted_runtime_bytes

    @property
    def predicted_runtime_bytes(self) -> int:
        """What the process will hold beside the model once it is loaded."""
        return self.runtime_bytes + self.growth_bytes

    @property
    def reserve_bytes(self) -> int:
        """Kept free for what no row predicts: as much as the ledger's residual may be."""
        return largest_residual_bytes(self.total_bytes)

    @property
    def budget_bytes(self) -> int:
        available = self.host.available_bytes + self.runtime_bytes
        return available if self.memory_limit is None else min(available, self.memory_limit)

    @property
    def fits(self) -> bool:
        return self.total_bytes + self.reserve_bytes <= self.budget_bytes

    @property
    def rows(self) -> tuple[LedgerRow, ...]:
        """Predicted rows, nothing measured yet."""
        needs = self.needs
        parts = (
            ("weights", needs.weights_bytes, "formula: tensor list as held"),
            ("kv_pool", needs.kv_pool_bytes, f"formula: {self.options.num_blocks} blocks"),
            ("arena", needs.arena_bytes, f"formula: lifetimes x {self.options.limits.max_tokens} tokens"),
            ("logits", needs.logits_bytes, f"formula: {self.options.limits.max_logits_rows} rows"),
            ("tables", needs.tables_bytes, "formula"),
            ("states", needs.states_bytes, f"formula: {self.options.limits.max_requests} requests"),
            (
                "runtime",
                self.predicted_runtime_bytes,
                "RSS before load" + (" + constants" if self.growth_bytes else ""),
            ),
        )
        return tuple(
            LedgerRow(name, nbytes, None, "B", source) for name, nbytes, source in parts if nbytes or name != "states"
        )


def plan_memory(
    program: Program,
    types: Mapping[str, TensorType],
    kv: KVCacheSpec,
    options: LoadOptions,
    backend: Backend,
    runtime_bytes: int,
    host: HostMemory,
    *,
    growth_bytes: int = 0,
    memory_limit: int | None = None,
) -> MemoryPlan:
    """The plan for `program` as lowered by `backend`, its weights stored as `types`. Pure.

    runtime_bytes: what the process holds already. growth_bytes: what it takes in beside the model while it loads.
    memory_limit: bytes that the process may hold in all, if the user set any.
    """
    needs = backend.memory_needs(program, types, kv, options)
    return MemoryPlan(program, types, kv, options, backend, runtime_bytes, host, memory_limit, needs, growth_bytes)


def vary_plan(
    plan: MemoryPlan,
    *,
    program: Program | None = None,
    types: Mapping[str, TensorType] | None = None,
    kv: KVCacheSpec | None = None,
    options: LoadOptions | None = None,
) -> MemoryPlan:
    """The same plan with something changed, computed anew."""
    return plan_memory(
        program or plan.program,
        types or plan.types,
        kv or plan.kv,
        options or plan.options,
        plan.backend,
        plan.runtime_bytes,
        plan.host,
        growth_bytes=plan.growth_bytes,
        memory_limit=plan.memory_limit,
    )


def choose_num_blocks(plan: MemoryPlan) -> int:
    """The largest pool that fits, at most the plan's own `num_blocks`.

    Raises DoesNotFit if not even one request of the largest context has room.
    """
    least = plan.kv.blocks_for(plan.options.limits.max_context)

    def fits(num_blocks: int) -> bool:
        return vary_plan(plan, options=replace(plan.options, num_blocks=num_blocks)).fits

    best = _largest(min(least, plan.options.num_blocks), plan.options.num_blocks, fits)
    if best is None:
        check_fits(vary_plan(plan, options=replace(plan.options, num_blocks=least)))
        raise DoesNotFit(f"a pool of {plan.options.num_blocks} blocks", expected=f"at least {least} for one request")
    return best


def check_fits(plan: MemoryPlan, spec: ModelSpec | None = None) -> None:
    """Raise DoesNotFit, with the arithmetic and each single change that would make it fit, unless it fits.

    `spec` lets other weight types be tried; without it they are not offered.
    """
    if plan.fits:
        return
    rows = " + ".join(f"{row.label} {row.format_value(row.predicted)}" for row in plan.rows if row.predicted)
    limited = plan.memory_limit is not None and plan.budget_bytes == plan.memory_limit
    source = "the limit that was set" if limited else f"by {plan.host.source}, this process included"
    raise DoesNotFit(
        f"the model needs {format_bytes(plan.total_bytes + plan.reserve_bytes)}: {rows} + "
        f"{format_bytes(plan.reserve_bytes)} in reserve",
        expected=f"at most {format_bytes(plan.budget_bytes)} ({source})",
        action=format_advice(changes_that_fit(plan, spec)),
    )


def changes_that_fit(plan: MemoryPlan, spec: ModelSpec | None = None) -> tuple[Change, ...]:
    """Single changes, each of which plan_memory says fits. Without `spec` no other weight types are tried."""
    return tuple(changes_that(lambda lever, value: with_change(plan, lever, value, spec).fits, levers(plan, spec)))


def levers(plan: MemoryPlan, spec: ModelSpec | None = None) -> tuple[Lever, ...]:
    """What can be changed about `plan`, each towards less memory."""
    limits, block = plan.options.limits, plan.kv.block_tokens
    most_blocks = ceil_div(limits.max_context, block) - 1
    least_step = max(_SMALLEST_STEP_TOKENS, limits.max_logits_rows, limits.max_requests)
    smaller_kv = plan.kv.smaller_types(plan.backend.kv_types)
    found = [
        Lever("context", range(most_blocks * block, 0, -block), lambda n: f"a context of {format_count(n)} tokens"),
        Lever("batch", range(limits.max_requests - 1, 0, -1), _requests),
        Lever("step_tokens", range(limits.max_tokens - 1, least_step - 1, -1), _step_tokens),
        Lever("kv_dtype", smaller_kv, lambda name: f"K and V in {name}", by_degrees=False),
    ]
    if spec is not None:
        found.append(Lever("weights", _smaller_types(plan, spec), lambda name: f"weights in {name}", by_degrees=False))
    return tuple(found)


def with_change(plan: MemoryPlan, lever: str, value: Any, spec: ModelSpec | None = None) -> MemoryPlan:
    """`plan` with one lever at another value, planned anew. `spec` is needed for weights."""
    options, limits = plan.options, plan.options.limits
    if lever == "context":
        num_blocks = min(options.num_blocks, plan.kv.blocks_for(value) * limits.max_requests)
        return vary_plan(
            plan, options=replace(options, num_blocks=num_blocks, limits=replace(limits, max_context=value))
        )
    if lever == "batch":
        num_blocks = min(options.num_blocks, value * plan.kv.blocks_for(limits.max_context))
        rows = min(limits.max_logits_rows, value)
        fewer = replace(limits, max_requests=value, max_logits_rows=rows)
        return vary_plan(plan, options=replace(options, num_blocks=num_blocks, limits=fewer))
    if lever == "step_tokens":
        return vary_plan(plan, options=replace(options, limits=replace(limits, max_tokens=value)))
    if lever == "kv_dtype":
        return vary_plan(plan, kv=replace(plan.kv, kv_type=KV_TYPES[value]))
    if lever == "weights" and spec is not None:
        plain = build_program(spec)
        types = retyped(plain, plan.types, TENSOR_TYPES[value])
        return vary_plan(plan, program=plan.backend.lower(plain, types), types=types)
    raise ValueError(f"no lever {lever!r}")


def _requests(count: int) -> str:
    return f"{count} request{'s' if count > 1 else ''} at a time"


def _step_tokens(count: int) -> str:
    return f"at most {format_count(count)} tokens in a step"


def _smaller_types(plan: MemoryPlan, spec: ModelSpec) -> list[str]:
    plain = build_program(spec)
    return [name for name in _WEIGHT_TYPES_TRIED if retyped(plain, plan.types, TENSOR_TYPES[name]) != plan.types]


def retyped(program: Program, types: Mapping[str, TensorType], smaller: TensorType) -> dict[str, TensorType]:
    """`types` with every matrix that is stored in more bits, and whose rows allow it, stored as `smaller`."""
    out = dict(types)
    for name, weight in program.weights.items():
        if weight.role is not Role.VECTOR and smaller.bits_per_element < types[name].bits_per_element:
            try:
                smaller.row_bytes(weight.shape[-1])
            except SpecError:
                continue
            out[name] = smaller
    return out


def measure_plan(
    plan: MemoryPlan, buffers: Iterable[Buffer], process: Reading | None = None, runtime: Reading | None = None
) -> tuple[LedgerRow, ...]:
    """The plan's rows with what is resident beside them, and the residual.

    buffers: every large allocation, from LoadedProgram.buffers(). `process`: the process's resident set, read now
    where it is not given. `runtime`: measure_runtime when loading had ended; without it what was read for the plan.
    """
    resident = _resident_by_row(buffers)
    rows = []
    for row in plan.rows:
        if row.name == "runtime":
            measured = plan.runtime_bytes if runtime is None else runtime.nbytes
            source = row.source if runtime is None else f"{row.source} / {runtime.source}"
            rows.append(replace(row, measured=measured, source=source))
        elif row.name in resident:
            reading = resident[row.name]
            rows.append(replace(row, measured=reading.nbytes, source=f"{row.source} / {reading.source}"))
        elif row.predicted:
            rows.append(row)
    process = process or process_resident_bytes()
    return (*rows, residual_row(rows, process.nbytes, process.source))


def measure_runtime(buffers: Iterable[Buffer]) -> Reading:
    """What the process holds now beside the model's buffers."""
    resident, process = _resident_by_row(buffers), process_resident_bytes()
    parts = [reading.nbytes for reading in resident.values()]
    if process.nbytes is None or None in parts:
        return Reading(None, "not measured")
    return Reading(process.nbytes - sum(part for part in parts if part is not None), f"{process.source} - buffers")


def _resident_by_row(buffers: Iterable[Buffer]) -> dict[str, Reading]:
    resident: dict[str, Reading] = {}
    for buffer in buffers:
        reading = resident_bytes(buffer.address, buffer.nbytes)
        before = resident.get(buffer.row, Reading(0, reading.source))
        known = reading.nbytes is not None and before.nbytes is not None
        nbytes = (before.nbytes or 0) + (reading.nbytes or 0) if known else None
        resident[buffer.row] = Reading(nbytes, reading.source)
    return resident


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The largest n of low..high that fits, by bisection: whatever fits with more fits with less."""
    if high < low or not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
