"""What latency is predicted for a workload on this machine, and what it then takes.

    python benchmarks/prediction.py MODEL... [--workloads N,N] [--probe] [--tries N] [--append FILE]
    python benchmarks/prediction.py --summarize FILE

Each workload is `batch` different prompts that come at once and are answered with OUTPUT_TOKENS tokens each. The
prediction is the real scheduler on a virtual clock whose steps are priced with the machine's profile (`kvwise probe`).
TTFT and TPOT are means over the requests, and medians over a few times. Shared machines are not as fast at every
moment, so two steps whose time the profile holds are run before and after: by how much the machine was faster or slower
than when it was measured is printed, and the summary also tells of those workloads where it was the same. With --probe
what the model's weights and K and V cost is measured anew before each workload, with --tries N a workload is run again
where the machine had changed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from kvwise.backends.price.price import matmul_kind
from kvwise.backends.price.step import StepPricer
from kvwise.backends.protocol import Backend
from kvwise.engine.model import LoadedModel, OpenedModel, Settings, open_model
from kvwise.hardware.profile import DeviceProfile
from kvwise.planner.machine import Machine, read_machine
from kvwise.planner.probe import probe_machine
from kvwise.planner.probe_bench import Bench, matmul_program
from kvwise.planner.probe_samples import ALL
from kvwise.planner.simulation.clock import PricedSteps
from kvwise.planner.simulation.load import closed_load, fixed_sizes
from kvwise.planner.simulation.simulate import EngineSetup, simulate
from kvwise.program.ir import MatMul
from kvwise.spec.dtypes import TENSOR_TYPES
from kvwise.spec.request import Request, SamplingParams
from kvwise.spec.shape import StepLimits, StepShape

OUTPUT_TOKENS: Final = 32
REPETITIONS: Final = 3
LONG_S: Final = 4.0
SAME: Final = 0.08  # seconds of the same step that are no further apart are the same
YARD_PAIRS: Final = (2, 29)  # from a cache, from memory
YARD_ROWS: Final = (256, 1)
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
    changes: tuple[float, float]  # memory's and arithmetic's seconds over the profile's, further from 1 of twice

    @property
    def steady(self) -> bool:
        """Whether the machine was as fast as when it was measured."""
        return all(1 / (1 + SAME) <= change <= 1 + SAME for change in self.changes)

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


@dataclass(frozen=True, slots=True)
class Yardstick:
    """Steps whose time a profile holds: many rows of matrices from a cache, one of matrices from memory."""

    kind: str
    backend: Backend

    def changes(self, profile: DeviceProfile) -> tuple[float, float]:
        """(memory, arithmetic): seconds now over the profile's."""
        name, _, activations = self.kind.partition("*")
        out: list[float] = []
        for pairs, rows in zip(YARD_PAIRS, YARD_ROWS, strict=True):
            kind = TENSOR_TYPES[name]
            with Bench(self.backend, matmul_program(pairs), kind, profile.threads, activations=activations) as bench:
                read = bench.cost(StepShape.prefill(1)).weight_bytes
                passes = 2 * pairs * (profile.figure("pass_seconds") + 2 * profile.figure("op_seconds"))
                expected = read * profile.stream(self.kind).seconds_per_byte(rows, read) + passes
                out.append(bench.timing(rows, rows).seconds / expected)
        return out[1], out[0]


def yardstick(opened: OpenedModel) -> Yardstick:
    """Of the kind of matmul that most matrices of the model are."""
    kinds = Counter(
        matmul_kind(opened.program, op, opened.types) for op in opened.program.ops if isinstance(op, MatMul)
    )
    return Yardstick(kinds.most_common(1)[0][0], opened.backend)


def further(first: float, second: float) -> float:
    return max(first, second, key=lambda change: abs(math.log(change)))


def run(name: str, workloads: Sequence[int], *, probe: bool, tries: int) -> list[Outcome]:
    out = []
    most = max(batch for _, batch in WORKLOADS)
    with open_model(name) as opened:
        context = min(opened.spec.max_positions, max(prompt for prompt, _ in WORKLOADS) + OUTPUT_TOKENS)
        settings = Settings(max_context=context, max_requests=most, pool_tokens=2 * context, prefix_cache=False)
        threads = opened.load_options(settings).threads
        machine = read_machine(opened.backend.name, threads, opened.stream_kinds)
        with opened.load(settings) as loaded:
            measure(loaded, 16, 2, seed=0)
            for number in workloads:
                for _ in range(tries):
                    if probe:
                        machine = replace(machine, profile=fresh(machine.profile, opened))
                    outcome = compare(Path(name).stem, loaded, machine, settings, number)
                    if outcome.steady:
                        break
                out.append(outcome)
                print(describe(outcome), flush=True)
    return out


def compare(name: str, loaded: LoadedModel, machine: Machine, settings: Settings, number: int) -> Outcome:
    opened, (prompt, batch) = loaded.opened, WORKLOADS[number]
    options, yard = opened.load_options(settings), yardstick(opened)
    pricer = machine.corrected(opened.pricer(machine.profile))
    predicted = predict(pricer, options.limits, options.num_blocks, prompt, batch)
    before = yard.changes(machine.profile)
    measured = measure_repeatedly(loaded, prompt, batch, seed=1000 * number)
    after = yard.changes(machine.profile)
    ttfts, tpots = zip(predicted, measured, strict=True)
    changes = further(before[0], after[0]), further(before[1], after[1])
    return Outcome(name, prompt, batch, *ttfts, *tpots, machine.band.ttft, machine.band.tpot, changes)


def fresh(profile: DeviceProfile, opened: OpenedModel) -> DeviceProfile:
    """`profile` with the model's streams measured now, once."""
    once = replace(ALL, rounds=1)
    return probe_machine(opened.backend.name, profile.threads, opened.stream_kinds, known=profile, points=once).profile


def describe(o: Outcome) -> str:
    ttft, tpot = o.errors
    memory, arithmetic = o.changes
    marks = "".join("." if inside else "!" for inside in o.inside)
    return (
        f"{o.model:32} {o.prompt_tokens:5} x {o.batch:2}  "
        f"TTFT {o.predicted_ttft_s * 1e3:8.1f} {o.measured_ttft_s * 1e3:8.1f} ms {ttft:+6.1%}  "
        f"TPOT {o.predicted_tpot_s * 1e3:7.2f} {o.measured_tpot_s * 1e3:7.2f} ms {tpot:+6.1%} {marks}  "
        f"machine {memory:.2f} {arithmetic:.2f}"
    )


def summarize(outcomes: Sequence[Outcome]) -> str:
    """All of them, and those where the machine was as fast as when it was measured."""
    steady = [o for o in outcomes if o.steady]
    lines = [_summary("all", outcomes)]
    return "\n".join([*lines, _summary("as fast as when measured", steady)] if steady else lines)


def _summary(which: str, outcomes: Sequence[Outcome]) -> str:
    ttft = [abs(o.errors[0]) for o in outcomes]
    tpot = [abs(o.errors[1]) for o in outcomes]
    inside = [flag for o in outcomes for flag in o.inside]
    return (
        f"{which}, {len(outcomes)} workloads: TTFT median {statistics.median(ttft):.1%}, worst {max(ttft):.1%}; "
        f"TPOT median {statistics.median(tpot):.1%}, worst {max(tpot):.1%}; "
        f"{sum(inside) / len(inside):.0%} of measurements in their intervals"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--workloads", default=",".join(map(str, range(len(WORKLOADS)))))
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--tries", type=int, default=1)
    parser.add_argument("--append", type=Path)
    parser.add_argument("--summarize", type=Path)
    options = parser.parse_args()
    outcomes = []
    if options.summarize is not None:
        outcomes = [Outcome(**json.loads(line)) for line in options.summarize.read_text("utf-8").splitlines()]
        print("\n".join(map(describe, outcomes)))
    for name in options.models:
        numbers = [int(number) for number in options.workloads.split(",")]
        outcomes += run(name, numbers, probe=options.probe, tries=options.tries)
    if options.append is not None:
        with options.append.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(o)) + "\n" for o in outcomes)
    if outcomes:
        print(summarize(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
