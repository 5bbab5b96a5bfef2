"""A training step of one layer in numpy: what it keeps, by Python's allocator, and how long it takes."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Final

import numpy as np

from kvwise.spec.model import LayerSpec
from kvwise.studies.training_prefill_decode.layer import Array, Layer, Weights, activation_elements

_FLOAT_BYTES: Final = 4
# Passes of numpy over arrays of each size in a step, an exponential counted as four of them: layer.py has them.
_PASSES_PAIRS: Final = 14  # of probabilities
_PASSES_INNER: Final = 20  # of the MLP's inner activations
_PASSES_WEIGHTS: Final = 12  # of Adam
_ADAM_ARRAYS: Final = 7  # weight, gradient and both moments read; weight and both moments written
_WEIGHT_ARRAYS: Final = 3  # weights read forward and backward, gradients written


class Trainer:
    """Adam (Kingma and Ba, arXiv 1412.6980) on a made-up loss: the layer's output times random numbers."""

    def __init__(self, layer: Layer, x: Array, weights: Weights) -> None:
        """Changes `weights`."""
        self._layer, self._x, self._weights = layer, x, weights
        self._by_output = np.random.default_rng(1).standard_normal(x.shape, np.float32)
        self._first = {name: np.zeros_like(array) for name, array in weights.items()}
        self._second = {name: np.zeros_like(array) for name, array in weights.items()}

    def step(self) -> None:
        _, saved = self._layer.forward(self._x, self._weights)
        _, gradients = self._layer.backward(self._by_output, self._weights, saved)
        for name, gradient in gradients.items():
            first, second = self._first[name], self._second[name]
            first *= np.float32(0.9)
            first += np.float32(0.1) * gradient
            second *= np.float32(0.999)
            second += np.float32(0.001) * gradient * gradient
            self._weights[name] -= np.float32(1e-4) * first / (np.sqrt(second) + np.float32(1e-8))


def kept_by_training(layer: Layer, x: Array, weights: Weights) -> dict[str, int]:
    """Bytes that Python's allocator gave for each part: numpy reports its arrays to it."""
    kept: dict[str, int] = {}

    def note(part: str, make: Callable[[], dict[str, Array]]) -> dict[str, Array]:
        before = tracemalloc.get_traced_memory()[0]
        made = make()
        kept[part] = tracemalloc.get_traced_memory()[0] - before
        return made

    tracemalloc.start()
    try:
        own = note("weights", lambda: {name: array.copy() for name, array in weights.items()})
        moments = note("optimizer", lambda: {f"{n}{i}": np.zeros_like(own[n]) for n in own for i in (1, 2)})
        saved = note("activations", lambda: layer.forward(x.copy(), own)[1])
        note("gradients", lambda: layer.backward(x, own, saved)[1])
        del moments
    finally:
        tracemalloc.stop()
    return kept


def moved_bytes(parameters: int, activation_bytes: int) -> int:
    """What a step moves at least: weights, gradients and moments, and activations out and in again."""
    return _FLOAT_BYTES * parameters * (_WEIGHT_ARRAYS + _ADAM_ARRAYS) + 2 * activation_bytes


def predicted_training_s(spec: LayerSpec, tokens: int, weights: Weights, repetitions: int) -> float:
    """Multiplications, passes over arrays, and memory that the system gives anew, each at its rate, measured here."""
    attention, inner = spec.attention, getattr(spec.mlp, "intermediate", 0)
    parameters = sum(array.size for array in weights.values())
    matrices = [array for array in weights.values() if array.ndim == 2]
    inputs = {array.shape[1]: np.ones((tokens, array.shape[1]), np.float32) for array in matrices}
    pairs = np.ones((attention.num_q_heads, tokens, tokens), np.float32)

    def all_products() -> None:
        for matrix in matrices:
            inputs[matrix.shape[1]] @ matrix.T

    flops = 2 * tokens * sum(matrix.size for matrix in matrices)
    seconds_per_flop = median_seconds(all_products, repetitions) / flops
    seconds_per_element = median_seconds(lambda: pairs * pairs, repetitions) / pairs.size
    activation_bytes = _FLOAT_BYTES * activation_elements(spec, matrices[0].shape[1], tokens)

    def fresh_memory() -> list[Array]:  # held together, as activations are, so that the system must give it each time
        return [np.ones(activation_bytes // _FLOAT_BYTES // 8, np.float32) for _ in range(8)]

    seconds_per_fresh_byte = median_seconds(fresh_memory, repetitions) / activation_bytes
    # numpy multiplies what the mask hides, too; backward makes two products of each one.
    products = flops + 4 * tokens**2 * attention.q_width
    elements = _PASSES_PAIRS * pairs.size + _PASSES_INNER * tokens * inner + _PASSES_WEIGHTS * parameters
    # Activations, as many derivatives of them, and gradients come from the system anew at each step.
    fresh_bytes = 2 * activation_bytes + _FLOAT_BYTES * parameters
    return 3 * products * seconds_per_flop + elements * seconds_per_element + fresh_bytes * seconds_per_fresh_byte


def median_seconds(run: Callable[[], object], repetitions: int) -> float:
    """Of so many runs, after one that does not count."""
    run()
    taken = []
    for _ in range(repetitions):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
