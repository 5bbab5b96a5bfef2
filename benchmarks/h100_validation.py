"""Predictions beside serving latencies that others measured on H100, by engine, model, precision and devices.

    KVWISE_MEASURED=h100_serving.csv python benchmarks/h100_validation.py [--leave-one-out | --simulate] [--every N]

The points are the validation data of ai-dynamo/aiconfigurator (Apache-2.0), columns cut: mean TTFT and TPOT in
milliseconds of a closed loop of `batch_size` requests of `isl` input and `osl` output tokens. They are not part of
this project: the variable names the file. Constants are a table with sources (backends/price/efficiency.py). Some
were set with these points in view: with --leave-one-out those are chosen anew without one model's points, a minute
each, and its error is what they give for it. TTFT and TPOT are the steady state's; with --simulate those of the real
scheduler on a virtual clock, a second for each point, for engines that compute prompts in steps with decodes.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from kvwise.backends.price.efficiency import EXPECTED
from kvwise.backends.price.engines import ENGINES, EngineTiming
from kvwise.backends.price.roofline import RooflinePricer
from kvwise.hardware.devices import Placement, find_device
from kvwise.models import build_program
from kvwise.planner.pricing import roofline_pricer
from kvwise.planner.simulation.clock import Bends, PricedSteps
from kvwise.planner.simulation.load import closed_load, fixed_sizes
from kvwise.planner.simulation.simulate import EngineSetup, simulate
from kvwise.planner.sizes import stored_bytes, weight_type
from kvwise.planner.steady_state import Workload, steady_state
from kvwise.program.ir import Program, Role
from kvwise.spec.dtypes import TENSOR_TYPES, TensorType
from kvwise.spec.hf_config import spec_from_config
from kvwise.spec.kv import BLOCK_TOKENS, KVCacheSpec, KVType
from kvwise.spec.shape import StepLimits

VARIABLE: Final = "KVWISE_MEASURED"
# Engines fill this share of memory: vLLM's gpu_memory_utilization and TensorRT-LLM's free_gpu_memory_fraction by
# default, SGLang's mem_fraction_static on devices of 80 GB; of it, this much is for activations, graphs and the driver.
MEMORY_SHARE: Final = {"vllm": 0.9, "trtllm": 0.9, "sglang": 0.87}
ENGINE_BYTES: Final = 3e9
CYCLES: Final = 6  # responses that follow one another in a simulation

# From the config.json that each model has on the hub.
CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "Qwen/Qwen3-32B": {
        "model_type": "qwen3", "hidden_size": 5120, "num_hidden_layers": 64, "intermediate_size": 25600,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    },
    "meta-llama/Llama-3.1-8B-Instruct": {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 131072, "tie_word_embeddings": False,
    },
    "meta-llama/Llama-3.1-70B": {
        "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 28672,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 131072, "tie_word_embeddings": False,
    },
    "Qwen/Qwen3-235B-A22B-FP8": {
        "model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94, "intermediate_size": 12288,
        "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "norm_topk_prob": True, "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40960,
    },
    "openai/gpt-oss-120b": {
        "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36, "intermediate_size": 2880,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
        "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18, "max_position_embeddings": 131072,
        "attention_bias": True,
    },
    "MiniMaxAI/MiniMax-M2.5": {
        "model_type": "minimax_m2", "hidden_size": 3072, "num_hidden_layers": 62, "intermediate_size": 1536,
        "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 200064,
        "num_local_experts": 256, "num_experts_per_tok": 8, "use_qk_norm": True, "rotary_dim": 64,
        "max_position_embeddings": 196608, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    """One row of the file. precision: 'bf16', 'fp8' or 'fp4'."""

    engine: str
    model: str
    precision: str
    devices: int
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    measured_ttft_s: float
    measured_tpot_s: float

    @property
    def is_dense(self) -> bool:
        return "num_experts_per_tok" not in CONFIGS[self.model]

    @property
    def group(self) -> tuple[str, str, str, int]:
        return self.engine, self.model, self.precision, self.devices


@dataclass(frozen=True, slots=True)
class Checked:
    point: Point
    predicted_ttft_s: float
    predicted_tpot_s: float

    @property
    def tpot_error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_tpot_s / self.point.measured_tpot_s - 1

    @property
    def ttft_error(self) -> float:
        return self.predicted_ttft_s / self.point.measured_ttft_s - 1


def read_points(path: Path) -> list[Point]:
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Point(
                row["backend"],
                row["model_path"],
                row["precision"] or "bf16",
                int(row["tp_size"]),
                int(row["isl"]),
                int(row["osl"]),
                int(row["batch_size"]),
                float(row["silicon_ttft_ms"]) / 1e3,
                float(row["silicon_tpot_ms"]) / 1e3,
            )
            for row in csv.DictReader(file)
            if row["pp_size"] == "1"
        ]


def measured_file() -> Path | None:
    """The file that the variable names; None where it names none that is there."""
    path = Path(os.environ.get(VARIABLE, ""))
    return path if path.is_file() else None


def served_types(program: Program, precision: str) -> dict[str, TensorType]:
    """What engines serve: matrices of layers in 8 bits, of experts in 4; tables, head, router, norms in 16."""
    layers = weight_type({"bf16": "bf16", "fp8": "fp8", "fp4": "bf16"}[precision])
    experts = weight_type({"bf16": "bf16", "fp8": "fp8", "fp4": "mxfp4"}[precision])

    def of(name: str) -> TensorType:
        weight = program.weights[name]
        if weight.role is Role.EXPERTS and len(weight.shape) == 3:
            return experts
        narrow = weight.role is Role.MATRIX and name.startswith("layers.") and ".router." not in name
        return layers if narrow else TENSOR_TYPES["bf16"]

    return {name: of(name) for name in program.weights}


@dataclass(frozen=True, slots=True)
class Tuning:
    """The constants that were set with serving points in view: one of products in 8 bits, and factors of engines'."""

    matmul_flops_8: float = EXPECTED.matmul_flops_8
    step_factor: float = 1.0
    eager_factor: float = 1.0

    def engine(self, name: str) -> EngineTiming:
        row = ENGINES[name]
        return replace(
            row,
            step_s=row.step_s * self.step_factor,
            request_s=row.request_s * self.step_factor,
            eager_op_s=row.eager_op_s * self.eager_factor,
        )


AS_SHIPPED: Final = Tuning()
CHOICES: Final[Mapping[str, Sequence[float]]] = {
    "matmul_flops_8": (0.45, 0.5, 0.55, 0.6, 0.65, 0.7),
    "step_factor": (0.5, 0.75, 1.0, 1.25, 1.5),
    "eager_factor": (0.5, 0.75, 1.0, 1.25, 1.5),
}


@cache
def pricer_of(engine: str, model: str, precision: str, devices: int, tuning: Tuning = AS_SHIPPED) -> RooflinePricer:
    spec = spec_from_config(CONFIGS[model])
    program = build_program(spec)
    types = served_types(program, precision)
    kv = KVCacheSpec.of(spec, "bf16")
    if engine == "trtllm" and precision == "fp8":  # its FP8 checkpoints keep K and V in FP8, too
        kv = replace(kv, kv_type=KVType("fp8", weight_type("fp8")))
    placement = Placement(find_device("h100"), devices)
    return roofline_pricer(
        program, types, stored_bytes(program, types), kv, placement, tuning.engine(engine),
        efficiency=replace(EXPECTED, matmul_flops_8=tuning.matmul_flops_8),
    )  # fmt: skip


def cache_tokens(engine: str, pricer: RooflinePricer) -> int:
    """That fit beside the weights of the fullest device."""
    usable = pricer.placement.device.memory_usable_bytes or 0
    return min(
        int(
            (usable * MEMORY_SHARE[engine] - sum(stage.weight_bytes.values()) - ENGINE_BYTES) / stage.kv.bytes_per_token
        )
        for stage in pricer.stages
    )


def check(points: Iterable[Point], tuning: Tuning = AS_SHIPPED) -> list[Checked]:
    """By the formula of the steady state."""
    out = []
    for point in points:
        pricer = pricer_of(*point.group, tuning)
        work = Workload(
            point.prompt_tokens, point.output_tokens, point.concurrency, max(1, cache_tokens(point.engine, pricer))
        )
        engine = pricer.engine
        steady = steady_state(pricer, work, step_tokens=engine.max_step_tokens, mixes_prefill=engine.mixes_prefill)
        out.append(Checked(point, steady.ttft_s, steady.tpot_s or 0.0))
    return out


def check_simulated(points: Iterable[Point]) -> list[Checked]:
    """By the real scheduler on a virtual clock: CYCLES times as many requests as there are at once."""
    out = []
    for point in points:
        pricer = pricer_of(*point.group)
        if not pricer.engine.mixes_prefill:
            continue
        n = point.concurrency
        limits = StepLimits(pricer.engine.max_step_tokens, n, n, point.prompt_tokens + point.output_tokens)
        num_blocks = max(limits.max_context, cache_tokens(point.engine, pricer)) // BLOCK_TOKENS + 1
        load = closed_load(fixed_sizes(point.prompt_tokens, point.output_tokens, CYCLES * n), n)
        times = PricedSteps(pricer.seconds, Bends.of(pricer.stages[0].program))
        served = simulate(load, EngineSetup(num_blocks, limits, BLOCK_TOKENS, prefix_cache=False), times).requests
        ttft_s = statistics.fmean(one.first_token_s - one.arrival_s for one in served)
        out.append(Checked(point, ttft_s, statistics.fmean(one.tpot_s or 0.0 for one in served)))
    return out


@dataclass(frozen=True, slots=True)
class Summary:
    """Shares, of TPOT but for the last. bias: median signed error; ratios: measured / predicted, deciles 1 and 9."""

    name: str
    points: int
    median_error: float
    mean_error: float
    bias: float
    ratios: tuple[float, float]
    ttft_median_error: float


def summarize(name: str, checked: Sequence[Checked]) -> Summary:
    errors = [c.tpot_error for c in checked]
    ratios = sorted(c.point.measured_tpot_s / c.predicted_tpot_s for c in checked)
    last = len(ratios) - 1
    return Summary(
        name,
        len(checked),
        statistics.median(abs(e) for e in errors),
        statistics.fmean(abs(e) for e in errors),
        statistics.median(errors),
        (ratios[round(0.1 * last)], ratios[round(0.9 * last)]),
        statistics.median(abs(c.ttft_error) for c in checked),
    )


CLASSES: Final[Mapping[str, Callable[[Point], bool]]] = {
    "dense, one device, not FP4": lambda p: p.is_dense and p.devices == 1 and p.precision != "fp4",
    "dense, 2 to 8 devices": lambda p: p.is_dense and p.devices > 1,
    "mixtures of experts": lambda p: not p.is_dense,
}


def summaries(checked: Sequence[Checked]) -> list[Summary]:
    """By group, then by class."""
    groups: dict[tuple[str, str, str, int], list[Checked]] = defaultdict(list)
    for c in checked:
        groups[c.point.group].append(c)
    out = [summarize(" ".join(map(str, group)), groups[group]) for group in sorted(groups)]
    for name, belongs in CLASSES.items():
        members = [c for c in checked if belongs(c.point)]
        if members:
            out.append(summarize(name, members))
    return out


def tuned(points: Sequence[Point]) -> Tuning:
    """The choices, one after the other, with the least median error of TPOT for `points`."""
    best = AS_SHIPPED
    for name, choices in CHOICES.items():
        tried = {choice: replace(best, **{name: choice}) for choice in choices}
        errors = {
            choice: statistics.median(abs(c.tpot_error) for c in check(points, tuning))
            for choice, tuning in tried.items()
        }
        best = tried[min(errors, key=errors.__getitem__)]
    return best


def left_out(points: Sequence[Point]) -> list[Summary]:
    """Of each dense model, with constants that were chosen from every third point of the others."""
    dense = [p for p in points if p.is_dense]
    out = []
    for model in sorted({p.model for p in dense}):
        tuning = tuned([p for p in dense if p.model != model][::3])
        chosen = f"{tuning.matmul_flops_8:g}, {tuning.step_factor:g}, {tuning.eager_factor:g}"
        for devices in ("one device", "2 to 8 devices"):
            its = [p for p in dense if p.model == model and (p.devices == 1) is (devices == "one device")]
            if its:
                out.append(summarize(f"{model}, {devices}, left out ({chosen})", check(its, tuning)))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leave-one-out", action="store_true")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--every", type=int, default=1, help="only each Nth point")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    path = measured_file()
    if path is None:
        print(f"set {VARIABLE} to the file of measured points", file=sys.stderr)
        return 2
    points = read_points(path)[:: options.every]
    if options.leave_one_out:
        rows = left_out(points)
    else:
        rows = summaries(check_simulated(points) if options.simulate else check(points))
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return 0
    print(f"{'':64}{'points':>7}{'median':>8}{'mean':>8}{'bias':>8}{'measured / predicted':>22}{'TTFT':>8}")
    for row in rows:
        band = f"{row.ratios[0]:.2f} to {row.ratios[1]:.2f}"
        shares = "".join(f"{100 * share:7.1f}%" for share in (row.median_error, row.mean_error, row.bias))
        print(f"{row.name:64}{row.points:7}{shares}{band:>22}{100 * row.ttft_median_error:7.0f}%")
    return 0


if __name__ == "__main__":
    sys.exit(main())
