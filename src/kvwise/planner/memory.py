"""What a model costs in memory, from a file, a folder, a bare config.json or its shape alone; reads no weights.

    weights   as stored: the file's tensor list; from a config: the program's shapes in the publisher's type
    KV        bytes per token x tokens, for the context and batch asked for and for a table of them
    arena     what the engine's step needs beside them, at its default limits

16-bit K and V unless asked otherwise. Bytes come from the specs and from the ledger's plan; nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvwise.backends import BACKENDS
from kvwise.backends.price.engines import DEFAULT_ENGINE, ENGINES, ROOFLINE, EngineTiming
from kvwise.backends.protocol import Backend, LoadOptions
from kvwise.backends.runnable import runs
from kvwise.errors import BackendError, NotMeasured, UsageError
from kvwise.hardware.devices import Placement, parse_placement
from kvwise.ledger.host import HostMemory, read_cpu_budget, read_host_memory
from kvwise.ledger.memory import MemoryPlan, plan_memory
from kvwise.models import build_program
from kvwise.planner.described import describe_model
from kvwise.planner.latency import placed_latency
from kvwise.planner.machine import machine_latency
from kvwise.planner.placed import WeightBytes, plan_placed
from kvwise.planner.plan import Alternative, Plan
from kvwise.planner.policy import KVWISE, Policy
from kvwise.planner.pricing import roofline_pricer
from kvwise.planner.shape import DEFAULT_CONTEXT, plan_shape
from kvwise.planner.shares import share_bytes, stored_weights
from kvwise.planner.sizes import (
    StoredSizes,
    check_rows_divide,
    runs_on,
    stored_bytes,
    uniform_types,
    weight_type,
)
from kvwise.planner.steady_state import Workload
from kvwise.planner.stored import StoredCount
from kvwise.planner.tables import alternative, check_memory_limit, check_tokens, kv_table, split_context
from kvwise.program.ir import Program, Role
from kvwise.spec.dtypes import TensorType
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.model import AttentionSpec, LayerSpec, ModelSpec
from kvwise.spec.shape import StepLimits
from kvwise.units import format_bytes

__all__ = ["plan", "plan_shape"]

DEFAULT_STEP_TOKENS: Final = 512  # as the engine's


def plan(
    model: str | Path | Mapping[str, object] | ModelSpec,
    *,
    context: int | None = None,
    pictures: Sequence[tuple[int, int]] = (),
    batch: int = 1,
    kv_dtype: str = "f16",
    weights: str | None = None,
    memory_limit: int | None = None,
    host: HostMemory | None = None,
    backend: str = "native",
    on: str | Placement | None = None,
    engine: str | None = None,
    output_tokens: int | None = None,
    policy: Policy = KVWISE,
) -> Plan:
    """The memory that `model` takes, and how long it takes on devices; reads headers and configs, no weights.

    model: a GGUF or safetensors file, a folder, a config.json, a name, a parsed config or a ModelSpec. For a name what
    is on this disk goes before the catalogue, and that before the hub. Quantized safetensors are counted as stored, on
    the hub too, by their headers. context: tokens of each of `batch` requests; default: the engine's. pictures: (width,
    height) in pixels, whose tokens come on top. weights: plan for this type instead of the stored one. memory_limit:
    bytes to compare with instead of all that `host` (default: this machine) or a device has. on: devices such as
    "h100:4", instead of this machine, whose memory `policy` divides (presets.py has other engines') and on which
    `engine` (one of ENGINES; default: the policy's) serves it; of each context the last `output_tokens` are put out
    (default: 256).
    Raises UsageError, ModelNotFound, CheckpointError, SpecError or UnknownArchitecture.
    """
    described = describe_model(model)
    stored = described.stored if weights is None else None
    spec = described.spec
    context = check_tokens("context", min(spec.max_positions, DEFAULT_CONTEXT) if context is None else context)
    seen = _picture_tokens(described.name, spec, pictures)
    context += sum(seen)
    batch = check_tokens("batch", batch)
    memory_limit = check_memory_limit(memory_limit)
    kv = KVCacheSpec.of(spec, kv_dtype)
    program, types = described.program, described.types
    if weights is not None:
        check_rows_divide(program, weight_type(weights))
        types = uniform_types(program, weight_type(weights))
    host = host or read_host_memory()
    counted = None if stored is None else stored.weight_bytes
    placement = parse_placement(on) if isinstance(on, str) else on
    memory = placed = latency = pricer = None
    more_notes: tuple[str, ...] = ()
    if placement is not None and policy.engine and batch > policy.max_requests:
        more_notes = (f"{policy.name} runs at most {policy.max_requests:,} requests at once",)
    if placement is None or placement.is_this_machine:
        options = _options(kv, context, batch)
        memory = _memory_plan(program, types, kv, options, backend, host, memory_limit, counted)
    else:
        placed = plan_placed(
            program, _weight_shares(program, types, stored), kv, placement, policy, context=context, batch=batch,
            memory_limit=memory_limit,
        )  # fmt: skip
    if memory is not None:
        try:
            latency = machine_latency(memory, Workload(*split_context(context, output_tokens), batch))
        except NotMeasured as problem:
            more_notes = (f"no latency: {problem}",)
    if placement is not None and placed is not None:
        work = Workload(*split_context(context, output_tokens), batch, max(1, placed.max_requests) * context)
        has_experts = any(weight.role is Role.EXPERTS for weight in program.weights.values())
        try:
            sizes = stored_bytes(program, types)
            if stored is not None:
                types, sizes = stored_weights(stored.pieces, program, types)
            programs = [stage.program for stage in placed.stages]
            pricer = roofline_pricer(program, types, sizes, kv, placement, _timing(engine, policy), placed=programs)
            latency = placed_latency(pricer, work, has_experts=has_experts)
        except NotMeasured as problem:
            pricer, more_notes = None, (*more_notes, f"no latency: {problem}")
    return Plan(
        model=described.name,
        source=described.source,
        family=spec.family,
        parameters=program.num_parameters,
        weight_bytes=sum(stored_bytes(program, types).values()) if counted is None else counted,
        weight_type=_type_names(types) if stored is None else ", ".join(stored.dtypes).lower(),
        kv=kv,
        context=context,
        batch=batch,
        kv_table=kv_table(kv, context, batch),
        alternatives=_alternatives(spec, kv, context, batch),
        host=host,
        memory_limit=memory_limit,
        memory=memory,
        spec=spec,
        notes=(*_notes(spec, program, context, stored), *more_notes, *_picture_notes(pictures, seen)),
        active_parameters=program.num_active_parameters,
        embedding_parameters=program.num_embedding_parameters,
        stored=stored,
        latency=latency,
        placed=placed,
        pricer=pricer,
    )


def _timing(engine: str | None, policy: Policy) -> EngineTiming:
    """A policy that says whose step times also says how many tokens a step takes."""
    timing = ENGINES[engine or policy.engine or DEFAULT_ENGINE]
    if engine is not None or not policy.engine or timing is ROOFLINE:
        return timing
    return replace(timing, max_step_tokens=policy.step_tokens)


def _picture_tokens(name: str, spec: ModelSpec, pictures: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Of each picture. Raises UsageError for a model of which that is not known."""
    if pictures and spec.pictures is None:
        raise UsageError(f"{name} takes no pictures, or how many tokens they are is not known")
    return tuple(spec.pictures.num_tokens(width, height) for width, height in pictures) if spec.pictures else ()


def _picture_notes(pictures: Sequence[tuple[int, int]], seen: Sequence[int]) -> list[str]:
    sizes = dict.fromkeys(zip(pictures, seen, strict=True)) if seen else {}
    return [f"a picture of {width} x {height} is {tokens:,} tokens of the context" for (width, height), tokens in sizes]


def _weight_shares(program: Program, types: Mapping[str, TensorType], stored: StoredCount | None) -> WeightBytes:
    """What the weights of a rank's program take: counted in the files, else stored as `types`."""
    if stored is not None:
        return lambda part: share_bytes(stored.pieces, program, part)
    return lambda part: sum(stored_bytes(part, types).values())


def _options(kv: KVCacheSpec, context: int, batch: int) -> LoadOptions:
    """What the engine would load with for `batch` requests of `context` tokens, at its default step size."""
    step_tokens = max(min(DEFAULT_STEP_TOKENS, context * batch), batch)
    limits = StepLimits(max_tokens=step_tokens, max_logits_rows=batch, max_requests=batch, max_context=context)
    threads = read_cpu_budget().usable_threads  # a backend may keep scratch for each
    return LoadOptions(num_blocks=batch * kv.blocks_for(context), limits=limits, threads=threads)


def _memory_plan(
    program: Program,
    types: Mapping[str, TensorType],
    kv: KVCacheSpec,
    options: LoadOptions,
    backend_name: str,
    host: HostMemory,
    memory_limit: int | None,
    counted_bytes: int | None,
) -> MemoryPlan:
    """By the backend that would run it; by what is stored where none here can."""
    if counted_bytes is not None:
        sizes = StoredSizes(counted_bytes)
        return plan_memory(program, types, kv, options, sizes, 0, host, memory_limit=memory_limit)
    backend = _backend(backend_name) if runs(program) and runs_on(backend_name, types) else None
    if backend is not None and kv.kv_type.name in backend.kv_types:
        with suppress(BackendError):  # a weight type that it can't run
            lowered = backend.lower(program, types)
            return plan_memory(lowered, types, kv, options, backend, 0, host, memory_limit=memory_limit)
    return plan_memory(program, types, kv, options, StoredSizes(), 0, host, memory_limit=memory_limit)


def _backend(name: str) -> Backend | None:
    """None where the extension it needs is not built."""
    try:
        return BACKENDS[name]
    except ImportError:
        return None


def _alternatives(spec: ModelSpec, kv: KVCacheSpec, context: int, batch: int) -> tuple[Alternative, ...]:
    """None where K and V are latents: their size does not follow from a number of heads."""
    if not any(isinstance(layer.mixer, AttentionSpec) for layer in spec.layers):
        return ()
    out = []
    for name in ("mha", "mqa"):
        other = replace(spec, layers=tuple(_with_kv_heads(layer, mha=name == "mha") for layer in spec.layers))
        cache = KVCacheSpec.of(other, kv.kv_type.name, kv.block_tokens)
        out.append(alternative(name, cache, build_program(other).num_parameters, context, batch))
    return tuple(out)


def _with_kv_heads(layer: LayerSpec, *, mha: bool) -> LayerSpec:
    if not isinstance(layer.mixer, AttentionSpec):
        return layer
    return replace(layer, mixer=replace(layer.mixer, num_kv_heads=layer.mixer.num_q_heads if mha else 1))


def _type_names(types: Mapping[str, TensorType]) -> str:
    return ", ".join(dict.fromkeys(t.name for t in types.values()))


def _notes(spec: ModelSpec, program: Program, context: int, stored: StoredCount | None) -> tuple[str, ...]:
    notes = spec.notes
    if stored is not None:
        notes = tuple(note for note in notes if not note.startswith("quantization_config"))
        notes += tuple(f"in the files beyond the formula: {n:+,} elements, {why}" for why, n in stored.differences())
        if odd := sum(piece.nbytes for piece in stored.pieces if not piece.known):
            notes = (*notes, f"{format_bytes(odd)} of tensors of no known name; devices share them out as their layers")
    if not runs(program):
        notes = (*notes, f"{spec.family} models are counted and priced only: no backend runs them yet")
    if context <= spec.max_positions:
        return notes
    return (*notes, f"a context of {context:,} tokens is beyond the model's {spec.max_positions:,} positions")
