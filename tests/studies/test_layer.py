"""The layer that is trained: what the reference backend computes, its true derivatives, and what it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvwise.models import build_program
from kvwise.spec.model import MlpSpec
from kvwise.studies.serving import RandomWeights, llama_spec, serve
from kvwise.studies.training_prefill_decode.layer import Layer, Weights, activation_elements
from kvwise.studies.training_prefill_decode.measurement import layer_weights

TOKENS = 7
SPEC = llama_spec(
    hidden=32, layers=1, q_heads=4, kv_heads=2, head_dim=8, intermediate=48, vocab=40, positions=64
)  # fmt: skip


def layer_and_weights() -> tuple[Layer, Weights, NDArray[np.float32]]:
    rng = np.random.default_rng(3)
    source = RandomWeights(build_program(SPEC), "f32")
    weights = {name: value if value.ndim == 1 else 8 * value for name, value in layer_weights(source).items()}
    return (
        Layer(SPEC.layers[0], 1e-5, np.arange(TOKENS)),
        weights,
        rng.standard_normal((TOKENS, SPEC.hidden)).astype(np.float32),
    )


def test_derivatives_are_those_of_finite_differences() -> None:
    layer, narrow, x32 = layer_and_weights()
    weights: Any = {name: value.astype(np.float64) for name, value in narrow.items()}
    x: Any = x32.astype(np.float64)
    rng = np.random.default_rng(4)
    by_output: Any = rng.standard_normal(x.shape)
    _, saved = layer.forward(x, weights)
    by_x, gradients = layer.backward(by_output, weights, saved)

    def loss(x: Any, w: Any) -> float:
        return float((layer.forward(x, w)[0] * by_output).sum())

    step = 1e-5
    for name, gradient in {"x": by_x, **gradients}.items():
        direction = rng.standard_normal(gradient.shape)
        direction /= np.linalg.norm(direction)
        ahead, behind = (
            loss(x + sign * step * direction, weights)
            if name == "x"
            else loss(x, {**weights, name: weights[name] + sign * step * direction})
            for sign in (1, -1)
        )
        expected = float((gradient * direction).sum())
        assert (ahead - behind) / (2 * step) == pytest.approx(expected, rel=1e-3, abs=1e-4), name


def test_what_is_kept_is_what_the_formula_counts() -> None:
    layer, weights, x = layer_and_weights()
    _, saved = layer.forward(x, weights)
    counted = activation_elements(SPEC.layers[0], SPEC.hidden, TOKENS)
    assert sum(array.size for array in saved.values()) == counted
    assert isinstance(SPEC.layers[0].mlp, MlpSpec)


def test_the_forward_pass_is_what_the_engine_serves() -> None:
    from kvwise.spec.request import Request, SamplingParams

    source = RandomWeights(build_program(SPEC), "f32")
    weights = layer_weights(source)
    ids = (5, 9, 0, 33, 21, 7, 12)
    rows: list[NDArray[np.float32]] = []
    with serve(SPEC, source, 1, pool_tokens=32, logits_rows=8, kv_type="f32") as served:
        request = Request("a", ids, SamplingParams(max_tokens=1))
        served.engine.add_request(request, lambda _, logits: rows.extend(logits.copy()))
        for _ in served.engine.run():
            pass
    embedding = source.tensors["embed.weight"].raw.view(np.float32)
    out, _ = Layer(SPEC.layers[0], 1e-5, np.arange(len(ids))).forward(embedding[list(ids)], weights)
    normed = out / np.sqrt(np.mean(out * out, axis=-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(np.array(rows), normed @ embedding.T, atol=1e-5)
