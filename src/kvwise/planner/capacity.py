"""Capacity under load: a plan becomes an engine on the virtual clock, with the largest pool that its machine has.

    plan ─▶ Deployment: blocks beside the weights, limits and seconds of a step ─▶ simulate, find the highest load

On other devices the pool is what the fullest of them has left; on this machine what the ledger allows, and seconds come
from its measured profile. Steps of a pipeline pass all its stages before the next begins: engines that keep several
steps in it at once do better. Knows no arrivals and no files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from kvwise.backends.price.engines import DEFAULT_ENGINE, ENGINES
from kvwise.errors import DoesNotFit, NotMeasured, UsageError
from kvwise.hardware.devices import Placement, parse_placement
from kvwise.ledger.memory import MemoryPlan, choose_num_blocks, vary_plan
from kvwise.planner.machine import machine_pricer
from kvwise.planner.memory import plan
from kvwise.planner.placed import PlacedPlan, Stage
from kvwise.planner.plan import Plan
from kvwise.planner.policy import KVWISE, Policy
from kvwise.planner.simulation.asked import Asked
from kvwise.planner.simulation.clock import Bends, PricedSteps, StepTimes
from kvwise.planner.simulation.load import Load
from kvwise.planner.simulation.record import Record
from kvwise.planner.simulation.results import Summary, summarize
from kvwise.planner.simulation.simulate import EngineSetup, Progress, simulate
from kvwise.planner.simulation.slo import Search, Slo, Verdict, find_highest_concurrency, find_highest_rate
from kvwise.planner.tables import check_tokens
from kvwise.scheduler import POLICIES
from kvwise.spec.model import ModelSpec
from kvwise.spec.shape import StepLimits, StepShape
from kvwise.units import ceil_div, format_bytes

Model = str | Path | Mapping[str, object] | ModelSpec

MAX_REQUESTS_HERE: Final = 16  # in a step: on a CPU more gain little by company
_LEAST_BLOCK_TOKENS: Final = 16  # smaller blocks are kept as such: they waste little and take long to keep
PolicyOf = Callable[[Placement], Policy]


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on a machine, ready for requests on the virtual clock. The pool follows from the sizes of `plan`.

    arguments: of deploy(), from which it was made, so that it can be varied.
    """

    plan: Plan
    placement: Placement
    engine: str
    setup: EngineSetup
    times: StepTimes
    arguments: Mapping[str, Any] = field(repr=False)

    def serve(self, load: Load, progress: Progress | None = None) -> Record:
        return simulate(load, self.setup, self.times, progress=progress)

    @property
    def pool_tokens(self) -> int:
        return self.setup.num_blocks * self.setup.block_tokens

    @property
    def rate_alone(self) -> float:
        """Requests/s of one at a time with a prompt and an output of 256 tokens: where a search may begin."""
        prefill_s = self.times.step_seconds(StepShape.prefill(min(256, self.setup.limits.max_tokens)))
        return 1.0 / (prefill_s + sum(self.times.decode_seconds([257], 255)))

    def to_json(self) -> dict[str, object]:
        limits = self.setup.limits
        return {
            "on": str(self.placement),
            "engine": self.engine,
            "scheduling": _scheduling(self.engine),
            "num_blocks": self.setup.num_blocks,
            "block_tokens": self.setup.block_tokens,
            "max_requests": limits.max_requests,
            "max_step_tokens": limits.max_tokens,
            "max_context": limits.max_context,
            "prefix_cache": self.setup.prefix_cache,
            "kv_dtype": self.plan.kv.kv_type.name,
            "weight_type": self.plan.weight_type,
        }


def deploy(
    model: Model,
    *,
    on: str | Placement = "this",
    context: int | None = None,
    max_requests: int | None = None,
    step_tokens: int | None = None,
    kv_dtype: str = "f16",
    weights: str | None = None,
    memory_limit: int | None = None,
    engine: str | None = None,
    policy_of: PolicyOf | None = None,
    prefix_cache: bool = True,
) -> Deployment:
    """`model` on `on`, with as large a pool as there is room for. Reads no weights.

    context: of one request at most; default: all of the model's positions on devices, the engine's default here.
    policy_of: of a placement, its engine's policy (presets.py); default: kvwise's, with the times of `engine`.
    max_requests, step_tokens: of one step; defaults: the policy's and the engine's. The others: as plan(). Raises
    DoesNotFit where not one block, here not one request of the context, fits; NotMeasured where nothing says how long
    a step takes; and what plan() does.
    """
    arguments = dict(locals())
    placement = parse_placement(on) if isinstance(on, str) else on
    policy = KVWISE if policy_of is None else policy_of(placement)
    here = placement.is_this_machine
    if max_requests is None:
        max_requests = MAX_REQUESTS_HERE if here else policy.max_requests
    batch = check_tokens("max_requests", max_requests)
    timed = engine or policy.engine or DEFAULT_ENGINE
    if step_tokens is None:
        step_tokens = policy.step_tokens if here or policy.engine == timed else ENGINES[timed].max_step_tokens
    step_tokens = max(check_tokens("step_tokens", step_tokens), batch)
    planned = plan(
        model, context=context, batch=batch, kv_dtype=kv_dtype, weights=weights, memory_limit=memory_limit,
        on=placement, engine=timed, policy=replace(policy, step_tokens=step_tokens, max_requests=batch),
    )  # fmt: skip
    assert planned.spec is not None
    limits = StepLimits(step_tokens, batch, batch, context or planned.spec.max_positions)
    if planned.memory is not None:
        limits = replace(limits, max_context=planned.context)
        return _deploy_here(planned, planned.memory, placement, limits, prefix_cache, arguments)
    placed, pricer = planned.placed, planned.pricer
    if placed is None or pricer is None:
        raise NotMeasured(f"nothing says how long a step takes on {placement}", action="; ".join(planned.notes))
    block_tokens = max(policy.block_tokens, _LEAST_BLOCK_TOKENS)
    num_blocks = min(_pool_tokens(stage, placed, planned) for stage in placed.stages) // block_tokens
    if num_blocks < 1:
        raise _without_room(placed)
    setup = EngineSetup(
        num_blocks, limits, block_tokens, prefix_cache, POLICIES[_scheduling(timed)], planned.kv.bytes_per_token
    )
    program_bends = [Bends.of(stage.program) for stage in placed.stages]
    times = PricedSteps(pricer.seconds, Bends.joined(program_bends))
    return Deployment(planned, placement, timed, setup, times, arguments)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a deployment does under a load, and which load it can bear. Parts that were not asked for are None."""

    deployment: Deployment
    load: Load | None
    summary: Summary | None
    slo: Slo | None
    verdict: Verdict | None
    search: Search | None

    def to_json(self) -> dict[str, object]:
        load = self.load
        return {
            "model": self.deployment.plan.model,
            **self.deployment.to_json(),
            "load": None
            if load is None
            else {"source": load.source, "requests_per_s": load.rate, "concurrency": load.concurrency},
            "summary": None if self.summary is None else self.summary.to_json(),
            "slo": None if self.slo is None else asdict(self.slo),
            "verdict": None if self.verdict is None else asdict(self.verdict),
            "search": None if self.search is None else self.search.to_json(),
        }


def measure_capacity(
    deployment: Deployment, asked: Asked, slo: Slo | None = None, progress: Progress | None = None
) -> Capacity:
    """Serve the load that was given; with an SLO judge it, and find the highest load of its kind that keeps it.

    Raises UsageError where nothing of the load can be served.
    """
    load, summary, verdict, search = asked.given, None, None, None
    if load is not None:
        record = deployment.serve(load, progress)
        if not record.requests:
            raise UsageError(f"no request of this load is served: {record.refusals[0].reason}")
        summary = summarize(record)
        verdict = None if slo is None else slo.judge(record)
    if slo is not None:

        def attempt(level: float) -> Record:
            return deployment.serve(asked.at(level), progress)

        if asked.closed:
            search = find_highest_concurrency(attempt, slo, most=len(asked.sizes))
        else:
            search = find_highest_rate(attempt, slo, start=deployment.rate_alone)
    return Capacity(deployment, load, summary, slo, verdict, search)


def _scheduling(engine: str) -> str:
    """The policy by which an engine of this name computes prompts and decodes; kvwise's own is fcfs."""
    return "prompts_first" if engine in ENGINES and not ENGINES[engine].mixes_prefill else "fcfs"


def _pool_tokens(stage: Stage, placed: PlacedPlan, planned: Plan) -> int:
    """The largest pool beside everything else of the stage, of blocks as its plan counts them; 0: no room."""
    pool, block_tokens = stage.row("kv_pool"), placed.policy.block_tokens
    each = ceil_div(pool, planned.batch * ceil_div(planned.context, block_tokens))
    rest = stage.total_bytes - pool
    if each <= 0:
        raise UsageError("this model keeps no K and V", action="its requests are bound by their number alone")

    def needed(num_blocks: int) -> int:
        total = rest + num_blocks * each
        return total + stage.policy.reserve(total)

    most = max(0, stage.budget_bytes - rest) // each
    return block_tokens * max(0, bisect_right(range(most + 1), stage.budget_bytes, key=needed) - 1)


def _without_room(placed: PlacedPlan) -> DoesNotFit:
    stage = placed.fullest
    rest = stage.total_bytes - stage.row("kv_pool")
    return DoesNotFit(
        f"each of {placed.placement.num_devices} x {placed.placement.device.name} needs {format_bytes(rest)} and "
        f"{format_bytes(stage.policy.reserve(rest))} in reserve beside K and V",
        expected=f"less than {format_bytes(stage.budget_bytes)}",
        action="take more or larger devices, or smaller weights",
    )


def _deploy_here(
    planned: Plan,
    memory: MemoryPlan,
    placement: Placement,
    limits: StepLimits,
    prefix_cache: bool,
    arguments: Mapping[str, Any],
) -> Deployment:
    memory = vary_plan(memory, options=replace(memory.options, limits=limits))
    num_blocks = choose_num_blocks(memory)
    setup = EngineSetup(
        num_blocks, limits, memory.kv.block_tokens, prefix_cache, kv_bytes_per_token=memory.kv.bytes_per_token
    )
    times = PricedSteps(machine_pricer(memory).seconds, Bends.of(memory.program))
    return Deployment(planned, placement, "kvwise", setup, times, arguments)
