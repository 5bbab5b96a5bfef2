"""What latency is predicted for a workload on this machine, and what it then takes.

    python benchmarks/prediction.py MODEL... [--workloads N,N] [--append FILE]
    python benchmarks/prediction.py --summarize FILE

Each workload is `batch` different prompts that come at once and are answered with OUTPUT_TOKENS tokens each. The
prediction is the real scheduler on a virtual clock whose steps are priced with the machine's profile (`kvwise probe`).
TTFT and TPOT are means over the requests, and medians over a few times.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from kvwise.backends.price.step import StepPricer
from kvwise.engine.model import LoadedModel, Settings, open_model
from kvwise.planner.machine import read_machine
from kvwise.planner.simulation.clock import PricedSteps
from kvwise.planner.simulation.load import closed_load, fixed_sizes
from kvwise.planner.simulation.simulate import EngineSetup, simulate
from kvwise.spec.request import Request, SamplingParams
from kvwise.spec.shape import StepLimits

OUTPUT_TOKENS: Final = 32
REPETITIONS: Final = 3
LONG_S: Final = 4.0
WORKLOADS: Final = ((32, 1), (128, 1), (512, 1), (2048, 1), (32, 16), (128, 4), (512, 4), (1024, 2))  # prompt, batch


@dataclass(frozen=True, slots=True)
class Outcome:
    model: str
    prompt_tokens: int
    batch: int
    predicted_ttft_s: float
    measured_ttft_s: float
    predicted_tpot_s: float
    measured_tpot_s: float
    ttft_band: tuple[float, float]  # the intervals' ends, as shares of the prediction
    tpot_band: tuple[float, float]

    @property
    def errors(self) -> tuple[float, float]:
        """(predicted - measured) / measured of TTFT and TPOT."""
        return self.predicted_ttft_s / self.measured_ttft_s - 1, self.predicted_tpot_s / self.measured_tpot_s - 1

    @property
    def inside(self) -> tuple[bool, bool]:
        """Whether what was measured lies in the interval."""
        ttft, tpot = self.measured_ttft_s / self.predicted_ttft_s, self.measured_tpot_s / self.predicted_tpot_s
        return (
            self.ttft_band[0] <= ttft <= self.ttft_band[1],
            self.tpot_band[0] <= tpot <= self.tpot_band[1],
        )


def predict(pricer: StepPricer, limits: StepLimits, num_blocks: int, prompt: int, batch: int) -> tuple[float, float]:
    """(TTFT, TPOT)."""
    load = closed_load(fixed_sizes(prompt, OUTPUT_TOKENS, batch), batch)
    record = simulate(load, EngineSetup(num_blocks, limits), PricedSteps(pricer.seconds))
    ttfts = [served.first_token_s - served.arrival_s for served in record.requests]
    return statistics.fmean(ttfts), statistics.fmean(served.tpot_s or 0.0 for served in record.requests)


def measure(loaded: LoadedModel, prompt: int, batch: int, seed: int) -> tuple[float, float]:
    """(TTFT, TPOT)."""
    engine = loaded.engine
    rng = random.Random(seed)
    vocab = min(loaded.opened.spec.vocab, loaded.opened.tokenizer.vocab_size)
    sampling = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    names = [f"{seed}-{i}" for i in range(batch)]
    for name in names:
        ids = tuple(rng.randrange(10, vocab) for _ in range(prompt))
        engine.add_request(Request(name, ids, sampling))
    for _ in engine.run():
        pass
    outputs = [engine.outputs.pop(name) for name in names]
    return statistics.fmean(o.ttft_s or 0.0 for o in outputs), statistics.fmean(o.tpot_s or 0.0 for o in outputs)


def measure_repeatedly(loaded: LoadedModel, prompt: int, batch: int, seed: int) -> tuple[float, float]:
    """Medians of a few responses; of one where it takes long."""
    found: list[tuple[float, float]] = []
    start = time.monotonic()
    while not found or (len(found) < REPETITIONS and time.monotonic() - start < LONG_S):
        found.append(measure(loaded, prompt, batch, seed + 1 + len(found)))
    ttfts, tpots = zip(*found, strict=True)
    return statistics.median(ttfts), statistics.median(tpots)


def run(name: str, workloads: Sequence[int]) -> list[Outcome]:
    out = []
    most = max(batch for _, batch in WORKLOADS)
    with open_model(name) as opened:
        context = min(opened.spec.max_positions, max(prompt for prompt, _ in WORKLOADS) + OUTPUT_TOKENS)
        settings = Settings(max_context=context, max_requests=most, pool_tokens=2 * context, prefix_cache=False)
        options = opened.load_options(settings)
        machine = read_machine(opened.backend.name, options.threads, opened.stream_kinds)
        pricer = machine.corrected(opened.pricer(machine.profile))
        with opened.load(settings) as loaded:
            measure(loaded, 16, 2, seed=0)
            for number in workloads:
                prompt, batch = WORKLOADS[number]
                predicted = predict(pricer, options.limits, options.num_blocks, prompt, batch)
                measured = measure_repeatedly(loaded, prompt, batch, seed=1000 * number)
                ttfts, tpots = zip(predicted, measured, strict=True)
                out.append(
                    Outcome(Path(name).stem, prompt, batch, *ttfts, *tpots, machine.band.ttft, machine.band.tpot)
                )
                print(describe(out[-1]), flush=True)
    return out


def describe(o: Outcome) -> str:
    ttft, tpot = o.errors
    marks = "".join("." if inside else "!" for inside in o.inside)
    return (
        f"{o.model:32} {o.prompt_tokens:5} x {o.batch:2}  "
        f"TTFT {o.predicted_ttft_s * 1e3:8.1f} {o.measured_ttft_s * 1e3:8.1f} ms {ttft:+6.1%}  "
        f"TPOT {o.predicted_tpot_s * 1e3:7.2f} {o.measured_tpot_s * 1e3:7.2f} ms {tpot:+6.1%} {marks}"
    )


def summarize(outcomes: Sequence[Outcome]) -> str:
    ttft = [abs(o.errors[0]) for o in outcomes]
    tpot = [abs(o.errors[1]) for o in outcomes]
    inside = [flag for o in outcomes for flag in o.inside]
    return (
        f"{len(outcomes)} workloads: TTFT median {statistics.median(ttft):.1%}, worst {max(ttft):.1%}; "
        f"TPOT median {statistics.median(tpot):.1%}, worst {max(tpot):.1%}; "
        f"{sum(inside) / len(inside):.0%} of measurements in their intervals"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--workloads", default=",".join(map(str, range(len(WORKLOADS)))))
    parser.add_argument("--append", type=Path)
    parser.add_argument("--summarize", type=Path)
    options = parser.parse_args()
    outcomes = []
    if options.summarize is not None:
        outcomes = [Outcome(**json.loads(line)) for line in options.summarize.read_text("utf-8").splitlines()]
        print("\n".join(map(describe, outcomes)))
    for name in options.models:
        outcomes += run(name, [int(number) for number in options.workloads.split(",")])
    if options.append is not None:
        with options.append.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(o)) + "\n" for o in outcomes)
    if outcomes:
        print(summarize(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
