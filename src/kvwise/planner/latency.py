"""How long a model takes on a machine: TTFT, TPOT, response, throughput, each with an interval; and what bounds them.

Requests follow one another without end at a constant number at once (steady_state.py); with one at a time that is an
idle machine. T_response = TTFT + (N_out - 1) · TPOT. Knows no memory but how many tokens the cache holds, and no clock.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from kvwise.backends.price.engines import ROOFLINE
from kvwise.backends.price.kernels import KernelKind
from kvwise.backends.price.roofline import RooflinePricer
from kvwise.backends.price.step import StepPrice, StepPricer
from kvwise.frozen import dataclass
from kvwise.planner.error_band import EXACT, ErrorBand, datasheet_band
from kvwise.planner.steady_state import Workload, steady_state
from kvwise.spec.shape import StepShape

LARGEST_BATCH: Final = 2**13  # no step of more requests is asked for


@dataclass(frozen=True, slots=True)
class Estimate:
    """A point, and the interval that held at least 80 % of what was measured where that was done."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class Share:
    """One class of kernels in a step."""

    kind: str
    predicted_s: float
    share: float
    bound: str


@dataclass(frozen=True, slots=True)
class Regime:
    """A step and what bounds it: 'memory', 'arithmetic' or 'fixed' (starts, launches, messages, the engine).

    tokens: computed; context: of each request at the end. arithmetic_intensity: FLOP per byte moved.
    kv_read_share: the part of the step's seconds that is reading K and V.
    """

    phase: str
    tokens: int
    context: int
    predicted_s: float
    bound: str
    arithmetic_intensity: float
    kv_read_share: float
    shares: tuple[Share, ...]
    overhead_s: float


@dataclass(frozen=True, slots=True)
class Latency:
    """`concurrency` requests of so many tokens at once, of which `running` are in the cache.

    prefill: one prompt alone, as far as one step takes it. decode: all running requests at their mean context.
    ridge: FLOP per byte where arithmetic takes as long as reading, by the machine's peaks; None where those were
    measured per kind. Both turning batches are the smallest decode batches that are bound by arithmetic, at the mean
    context, None where none is: of the whole step, and of its matrix products alone.
    """

    machine: str
    engine: str
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    running: int
    ttft_s: Estimate
    tpot_s: Estimate | None
    response_s: Estimate
    output_tokens_per_s: Estimate
    prefill: Regime
    decode: Regime
    ridge: float | None
    turning_batch: int | None
    matmul_turning_batch: int | None
    tokens_per_step: float
    interval_source: str

    def to_json(self) -> dict[str, object]:
        estimates = {
            name: None if (estimate := getattr(self, name)) is None else estimate.to_json()
            for name in ("ttft_s", "tpot_s", "response_s", "output_tokens_per_s")
        }
        plain = {name: value for name, value in asdict(self).items() if name not in estimates}
        return {**plain, **estimates}


def predict_latency(
    pricer: StepPricer,
    work: Workload,
    *,
    machine: str,
    engine: str,
    step_tokens: int,
    band: ErrorBand,
    mixes_prefill: bool = True,
    parts: int = 1,
    ridge: float | None = None,
    turning: bool = True,
) -> Latency:
    """Everything from a pricer and a workload. Pure. Without `turning` no turning batch is looked for.

    parts: requests are taken in as many groups, each with steps of its own, at the same time: stages of a pipeline.
    Raises NotMeasured where the machine's figures lack what the model needs.
    """
    group = work.part(parts)
    steady = steady_state(pricer, group, step_tokens=step_tokens, mixes_prefill=mixes_prefill)
    alone = min(work.prompt_tokens, step_tokens)
    prefill = _regime("prefill", pricer.price(StepShape.prefill(alone)), alone, alone)
    decode_price = pricer.price(StepShape.decode(work.mean_context, group.running))
    ttft_s = _estimate(steady.ttft_s, band.ttft if work.concurrency == 1 else band.loaded_ttft)
    tpot_s = None if steady.tpot_s is None else _estimate(steady.tpot_s, band.tpot)
    intervals = work.output_tokens - 1
    response_s = _response(ttft_s, tpot_s, intervals)
    per_response = work.concurrency * work.output_tokens
    return Latency(
        machine=machine,
        engine=engine,
        prompt_tokens=work.prompt_tokens,
        output_tokens=work.output_tokens,
        concurrency=work.concurrency,
        running=min(work.concurrency, parts * group.running),
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        response_s=response_s,
        output_tokens_per_s=Estimate(
            per_response / response_s.value, per_response / response_s.high, per_response / response_s.low
        ),
        prefill=prefill,
        decode=_regime("decode", decode_price, group.running, work.mean_context),
        ridge=ridge,
        turning_batch=turning_batch(pricer, work.mean_context) if turning else None,
        matmul_turning_batch=turning_batch(pricer, work.mean_context, KernelKind.MATMUL) if turning else None,
        tokens_per_step=work.tokens_per_step,
        interval_source=band.source,
    )


def turning_batch(pricer: StepPricer, context: int, kind: KernelKind | None = None) -> int | None:
    """The smallest decode batch that is bound by arithmetic, of the step or of one class; None up to LARGEST_BATCH.

    Of two batches the larger is the one bound by arithmetic, or K and V outgrow the products and none is.
    """

    def turned(batch: int) -> bool:
        price = pricer.price(StepShape.decode(context, batch))
        part = None if kind is None else price.part(kind)
        return part.arithmetic_s >= part.memory_s if part is not None else price.bound == "arithmetic"

    high = 1
    while not turned(high):
        high *= 2
        if high > LARGEST_BATCH:
            return None
    low = high // 2  # not turned, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if turned(middle) else (middle, high)
    return high


def _regime(phase: str, price: StepPrice, tokens: int, context: int) -> Regime:
    attention = price.part(KernelKind.ATTENTION)
    reading_s = 0.0
    if attention is not None and attention.cost.moved_bytes:
        reading_s = min(attention.seconds, attention.memory_s)
        reading_s *= attention.cost.kv_read_bytes / attention.cost.moved_bytes
    return Regime(
        phase,
        tokens,
        context,
        price.predicted_seconds,
        price.bound,
        price.cost.flops / price.cost.moved_bytes,
        reading_s / price.predicted_seconds,
        tuple(
            Share(part.kind.value, part.seconds, part.seconds / price.predicted_seconds, part.bound)
            for part in price.parts
        ),
        price.overhead_s,
    )


def _estimate(value: float, ratios: tuple[float, float]) -> Estimate:
    return Estimate(value, value * ratios[0], value * ratios[1])


def _response(ttft: Estimate, tpot: Estimate | None, intervals: int) -> Estimate:
    if tpot is None:
        return ttft
    ends = (getattr(ttft, end) + intervals * getattr(tpot, end) for end in ("value", "low", "high"))
    return Estimate(*ends)


def placed_latency(pricer: RooflinePricer, work: Workload, *, has_experts: bool, turning: bool = True) -> Latency:
    """On devices that are known by their sheets, under the pricer's engine.

    Stages of a pipeline each work on a part of the requests, so that a step is one of fewer requests.
    """
    placement, engine = pricer.placement, pricer.engine
    device = placement.device
    band = EXACT if engine is ROOFLINE else datasheet_band(device.name, has_experts=has_experts)
    ridge = next((device.peaks[d] for d in ("bf16", "f16", "f32") if d in device.peaks), 0) / device.memory_bandwidth()
    return predict_latency(
        pricer,
        work,
        machine=str(placement),
        engine=engine.name,
        step_tokens=engine.max_step_tokens,
        band=band,
        mixes_prefill=engine.mixes_prefill,
        parts=placement.pipeline_parallel,
        ridge=ridge or None,
        turning=turning,
    )
