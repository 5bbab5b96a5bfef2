"""Runs one layer three ways on the same weights: a training step in numpy, a prefill and decodes by the engine."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from kvwise.errors import NotMeasured
from kvwise.ledger.residency import resident_bytes
from kvwise.models import build_program
from kvwise.program.cost import OpCost, cost_of
from kvwise.program.ir import Program
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.model import ModelSpec
from kvwise.spec.request import Request, SamplingParams
from kvwise.spec.shape import StepShape
from kvwise.studies.serving import RandomWeights, Served, llama_spec, serve
from kvwise.studies.study import Ask, Results
from kvwise.studies.training_prefill_decode.layer import Layer, Weights, activation_elements
from kvwise.studies.training_prefill_decode.training import (
    Trainer,
    kept_by_training,
    median_seconds,
    moved_bytes,
    predicted_training_s,
)

_LAYER: Final = "layers.0"
_FLOAT_BYTES: Final = 4
_KIND: Final = "f32"


@dataclass(frozen=True, slots=True)
class Sizes:
    """One layer in float32, with a vocabulary as small as can be beside it; `tokens` positions in one sequence."""

    hidden: int = 1024
    q_heads: int = 16
    kv_heads: int = 4
    head_dim: int = 64
    intermediate: int = 2816
    vocab: int = 256
    tokens: int = 512
    repetitions: int = 7

    @property
    def spec(self) -> ModelSpec:
        return llama_spec(
            hidden=self.hidden,
            layers=1,
            q_heads=self.q_heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate=self.intermediate,
            vocab=self.vocab,
            positions=4 * self.tokens,
        )


def measure(ask: Ask, sizes: Sizes = Sizes()) -> Results:
    spec = sizes.spec
    source = RandomWeights(build_program(spec), _KIND)
    weights = layer_weights(source)
    parameters = sum(array.size for array in weights.values())
    training = _train(ask, sizes, spec, weights)
    with serve(spec, source, ask.threads, pool_tokens=4 * sizes.tokens, step_tokens=sizes.tokens) as served:
        phases = [training, _prefill(ask, sizes, served, parameters), _decode(ask, sizes, served, parameters)]
        roof = _roof(served, _FLOAT_BYTES * parameters)
    return {"sizes": asdict(sizes), "parameters": parameters, "phases": phases, "roof": roof}


def layer_weights(source: RandomWeights) -> Weights:
    """The layer's weights as numbers, by their short names: 'q', 'down', 'attn_norm'."""
    return {
        name.removesuffix(".weight").rpartition(".")[2]: stored.raw.view(np.float32).reshape(stored.shape)
        for name, stored in source.tensors.items()
        if name.startswith(_LAYER)
    }


def _train(ask: Ask, sizes: Sizes, spec: ModelSpec, weights: Weights) -> dict[str, Any]:
    layer = Layer(spec.layers[0], 1e-5, np.arange(sizes.tokens))
    x = np.random.default_rng(0).standard_normal((sizes.tokens, sizes.hidden), np.float32)
    parameters = sum(array.size for array in weights.values())
    activations = _FLOAT_BYTES * activation_elements(spec.layers[0], sizes.hidden, sizes.tokens)
    ask.say("training: what is kept")
    kept = kept_by_training(layer, x, weights)
    ask.say("training: numpy's own rates")
    predicted_s = predicted_training_s(spec.layers[0], sizes.tokens, weights, sizes.repetitions)
    ask.say("training: steps")
    trainer = Trainer(layer, x, {name: array.copy() for name, array in weights.items()})
    forward = _layer_cost(build_program(spec), KVCacheSpec.of(spec), StepShape.prefill(sizes.tokens))
    copies = {"weights": 1, "gradients": 1, "optimizer": 2}
    return {
        "phase": "training",
        "rules": None,
        "positions": sizes.tokens,
        "flops": 3 * forward.flops,
        "moved_bytes": moved_bytes(parameters, activations),
        "kept": [
            *(_part(name, n * _FLOAT_BYTES * parameters, kept[name], "tracemalloc") for name, n in copies.items()),
            _part("activations", activations, kept["activations"], "tracemalloc"),
        ],
        "predicted_s": predicted_s,
        "measured_s": median_seconds(trainer.step, sizes.repetitions),
    }


def _prefill(ask: Ask, sizes: Sizes, served: Served, parameters: int) -> dict[str, Any]:
    """Different prompts, so that nothing is found in the cache; the first meets the memory for the first time."""
    ask.say("prefill")
    kv_bytes = 0
    seconds = []
    for number in range(sizes.repetitions + 1):
        served.engine.add_request(Request(f"{number}", _prompt(sizes, number), SamplingParams(max_tokens=1)))
        seconds += [report.measured_s for report in served.engine.run()]
        kv_bytes = kv_bytes or _resident_kv_bytes(served)
    shape = StepShape.prefill(sizes.tokens)
    return {
        **_served_phase(served, "prefill", "TTFT", shape, parameters),
        "kept": _kept_by_serving(served, sizes.tokens, parameters, kv_bytes),
        "measured_s": statistics.median(seconds[1:]),
    }


def _decode(ask: Ask, sizes: Sizes, served: Served, parameters: int) -> dict[str, Any]:
    ask.say("decode")
    steps = 4 * sizes.repetitions
    served.engine.add_request(Request("decode", _prompt(sizes, -1), SamplingParams(max_tokens=steps + 1)))
    _first, *seconds = [report.measured_s for report in served.engine.run()]
    shape = StepShape.decode(sizes.tokens + steps // 2)
    return {
        **_served_phase(served, "decode", "TPOT", shape, parameters),
        "kept": _kept_by_serving(served, sizes.tokens, parameters, None),
        "measured_s": statistics.median(seconds),
    }


def _prompt(sizes: Sizes, number: int) -> tuple[int, ...]:
    rng = np.random.default_rng(100 + number)
    return tuple(int(i) for i in rng.integers(0, sizes.vocab, sizes.tokens))


def _served_phase(served: Served, phase: str, latency: str, shape: StepShape, parameters: int) -> dict[str, Any]:
    """The layer's cost, and the predicted seconds of the whole step, embedding and head included."""
    cost = _layer_cost(served.loaded.program, served.kv, shape)
    return {
        "phase": phase,
        "rules": latency,
        "positions": shape.num_tokens,
        "flops": cost.flops,
        "moved_bytes": cost.moved_bytes,
        "predicted_s": _priced(served, shape),
    }


def _priced(served: Served, shape: StepShape) -> float | None:
    """None where this machine can't be probed."""
    try:
        return served.pricer().price(shape).predicted_seconds
    except NotMeasured:
        return None


def _layer_cost(program: Program, kv: KVCacheSpec, shape: StepShape) -> OpCost:
    """Of the layer's ops alone, its weights in float32."""
    cost = cost_of(program, shape, kv, lambda name: _FLOAT_BYTES * program.weights[name].num_elements)
    return sum((c for op, c in cost.ops if op.out.startswith(_LAYER)), OpCost())


def _kept_by_serving(served: Served, tokens: int, parameters: int, kv_bytes: int | None) -> list[dict[str, Any]]:
    return [
        _part("weights", _FLOAT_BYTES * parameters, None, "-"),
        _part("kv", served.kv.kv_stored_bytes(tokens), kv_bytes, "pagemap"),
    ]


def _resident_kv_bytes(served: Served) -> int:
    pool = [buffer for buffer in served.loaded.buffers() if buffer.row == "kv_pool"]
    return sum(resident_bytes(buffer.address, buffer.nbytes).nbytes or 0 for buffer in pool)


def _part(part: str, predicted: int, measured: int | None, tool: str) -> dict[str, Any]:
    return {"part": part, "predicted_bytes": predicted, "measured_bytes": measured, "source": f"formula / {tool}"}


def _roof(served: Served, weight_bytes: int) -> dict[str, float] | None:
    """What this machine does with such weights: bytes/s for one row, FLOP/s for many."""
    try:
        figures = served.pricer().profile.stream(_KIND)
    except NotMeasured:
        return None
    flops_per_byte = 2 / _FLOAT_BYTES
    return {
        "bytes_per_s": figures.bandwidth(weight_bytes),
        "flops_per_s": flops_per_byte * figures.multiplied_bytes_per_second,
    }
