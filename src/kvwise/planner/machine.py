"""This machine: its pricer, corrected by what real runs took, and how far both have been off."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from kvwise.backends.price.forecast import ResponseForecast, forecast_response
from kvwise.backends.price.price import Pricer, matmul_kind, stream_kinds
from kvwise.backends.price.step import StepPrice, StepPricer
from kvwise.engine.model import OpenedModel
from kvwise.errors import NotMeasured
from kvwise.frozen import dataclass
from kvwise.hardware.profile import DeviceProfile
from kvwise.hardware.run_log import DECODE, PREFILL, Correction, append_run, log_path, read_correction
from kvwise.ledger.memory import MemoryPlan
from kvwise.planner.error_band import ErrorBand, measured_band
from kvwise.planner.latency import Latency, predict_latency
from kvwise.planner.probe import machine_profile, machine_profile_path
from kvwise.planner.sizes import StoredSizes
from kvwise.planner.steady_state import Workload
from kvwise.program.ir import MatMul
from kvwise.program.special import Experts
from kvwise.spec.shape import StepShape

FEWEST_TOKENS = 8  # a prompt or an output of fewer says more of the clock than of the machine


@dataclass(frozen=True, slots=True)
class CorrectedPricer:
    """Another pricer's seconds times a factor for steps that only decode, and one for those with prompts."""

    pricer: StepPricer
    prefill: float
    decode: float

    def price(self, shape: StepShape) -> StepPrice:
        factor, price = self._factor(shape), self.pricer.price(shape)
        parts = tuple(
            replace(
                part,
                memory_s=factor * part.memory_s,
                arithmetic_s=factor * part.arithmetic_s,
                fixed_s=factor * part.fixed_s,
                seconds=factor * part.seconds,
            )
            for part in price.parts
        )
        return StepPrice(parts, factor * price.overhead_s, factor * price.predicted_seconds, price.cost)

    def seconds(self, shape: StepShape) -> float:
        return self._factor(shape) * self.pricer.seconds(shape)

    def _factor(self, shape: StepShape) -> float:
        return self.decode if shape.num_tokens == len(shape.queries) else self.prefill


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of this machine under one backend: measured once, and refined by runs."""

    profile: DeviceProfile
    log: Path
    prefill: Correction
    decode: Correction

    @property
    def band(self) -> ErrorBand:
        """Of what was measured over what is predicted."""
        return measured_band(self.profile.spread, self.prefill, self.decode, thorough=self.profile.thorough)

    def corrected(self, pricer: StepPricer) -> StepPricer:
        """`pricer` of this profile, corrected."""
        return CorrectedPricer(pricer, self.prefill.factor, self.decode.factor)

    def note_run(self, raw: ResponseForecast, prompt_tokens: int, ttft_s: float | None, tpot_s: float | None) -> None:
        """Log what a response took beside what was predicted without any correction."""
        if ttft_s is not None and prompt_tokens >= FEWEST_TOKENS:
            append_run(self.log, PREFILL, raw.predicted_ttft_s, ttft_s)
        if tpot_s is not None and raw.predicted_tpot_s is not None and raw.output_tokens >= FEWEST_TOKENS:
            append_run(self.log, DECODE, raw.predicted_tpot_s, tpot_s)


def read_machine(backend: str, threads: int, kinds: list[str], *, measure: bool = True) -> Machine:
    """From the cache, with kinds that are missing measured now. Raises NotMeasured, also where nothing may be."""
    profile = machine_profile(backend, threads, kinds, measure=measure)
    log = log_path(machine_profile_path(backend, threads))
    return Machine(profile, log, read_correction(log, PREFILL), read_correction(log, DECODE))


def machine_latency(memory: MemoryPlan, work: Workload) -> Latency:
    """On this machine, as far as it was measured before: nothing is measured now. Raises NotMeasured."""
    machine, pricer = _machine_of(memory)
    return predict_latency(
        machine.corrected(pricer),
        work,
        machine=f"{machine.profile.device}, {memory.options.threads} threads",
        engine="kvwise",
        step_tokens=memory.options.limits.max_tokens,
        band=machine.band,
        turning=False,
    )


def machine_pricer(memory: MemoryPlan) -> StepPricer:
    """Steps of `memory`'s program on this machine, as far as it was measured before. Raises NotMeasured."""
    machine, pricer = _machine_of(memory)
    return machine.corrected(pricer)


def machine_roof(memory: MemoryPlan) -> tuple[float, float]:
    """Weight bytes/s for one row and FLOP/s for many, of the kind of matmul that most weight bytes go through.

    Raises NotMeasured.
    """
    machine, pricer = _machine_of(memory)
    elements: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for op in memory.program.ops:
        if isinstance(op, MatMul | Experts):
            kind = matmul_kind(memory.program, op, memory.types)
            for name in op.weights:
                elements[kind] += memory.program.weights[name].num_elements
                nbytes[kind] += pricer.weight_bytes[name]
    if not nbytes:
        raise NotMeasured("this model multiplies no matrices")
    kind, most = nbytes.most_common(1)[0]
    figures = machine.profile.stream(kind)
    flops_per_byte = 2 * elements[kind] / most
    return figures.bandwidth(nbytes.total()), flops_per_byte * figures.multiplied_bytes_per_second


def _machine_of(memory: MemoryPlan) -> tuple[Machine, Pricer]:
    program, types, kv = memory.program, memory.types, memory.kv
    if isinstance(memory.backend, StoredSizes):
        raise NotMeasured("no backend here runs this model, so nothing says how long a step takes")
    kinds = stream_kinds(program, types, kv)
    machine = read_machine(memory.backend.name, memory.options.threads, kinds, measure=False)
    return machine, Pricer(program, kv, memory.backend.weight_bytes(program, types), types, machine.profile)


@dataclass(frozen=True, slots=True)
class MachineForecast:
    """A response's forecast as it is told, and as the profile alone has it."""

    told: ResponseForecast
    raw: ResponseForecast
    machine: Machine


def forecast_on(
    machine: Machine, opened: OpenedModel, prompt_tokens: int, output_tokens: int, step_tokens: int
) -> MachineForecast:
    """TTFT and TPOT of one request on this machine when it is otherwise idle. Raises NotMeasured."""
    pricer = opened.pricer(machine.profile)
    told, raw = (
        forecast_response(each, prompt_tokens, output_tokens, step_tokens=step_tokens)
        for each in (machine.corrected(pricer), pricer)
    )
    return MachineForecast(told, raw, machine)
