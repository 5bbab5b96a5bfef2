"""What is kept of K and V: sizes, the nearest numbers of each type, and the rotation that integers are taken of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvwise.backends.reference.backend import REFERENCE
from kvwise.backends.reference.kv_codec import decode, encode, rotate
from kvwise.spec.kv import KV_TYPES

kv_types = pytest.mark.parametrize("kv_type", REFERENCE.kv_types)
integer_types = pytest.mark.parametrize(("kv_type", "low", "high"), [("int8", -127, 127), ("int4", -8, 7)])


def heads(n: int, dim: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


def through(kv_type: str, x: NDArray[np.float32]) -> NDArray[np.float64]:
    return decode(kv_type, encode(kv_type, x), x.shape[-1], np.float64)


@kv_types
@given(dim=st.integers(1, 200), n=st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_a_head_takes_the_bytes_that_are_counted(kv_type: str, dim: int, n: int) -> None:
    x = heads(n, dim)
    assert encode(kv_type, x).shape == (n, KV_TYPES[kv_type].token_bytes(1, dim, 0))
    assert through(kv_type, x).shape == x.shape


@pytest.mark.parametrize(("kv_type", "bits"), [("f32", 24), ("f16", 11), ("bf16", 8)])
def test_floats_are_the_nearest(kv_type: str, bits: int) -> None:
    x = heads(50, 64)
    assert (abs(through(kv_type, x) - x) <= 2.0**-bits * abs(x)).all()
    whole = np.round(x * 8)
    np.testing.assert_array_equal(through(kv_type, whole), whole)


@integer_types
@pytest.mark.parametrize("dim", [64, 80, 100, 17])
def test_integers_are_the_nearest_of_the_rotated_head(kv_type: str, low: int, high: int, dim: int) -> None:
    x = heads(40, dim)
    stored = encode(kv_type, x)
    scale = stored[:, -2:].copy().view(np.float16).astype(np.float64)
    rotated = rotate(x.astype(np.float64))
    levels = rotate(through(kv_type, x)) / scale
    assert (abs(levels - np.round(levels)) < 1e-9).all()
    assert (np.round(levels) >= low).all()
    assert (np.round(levels) <= high).all()
    # Half a step; and where the opposite end is cut off, what lies beyond it.
    beyond = np.maximum(abs(rotated) - np.minimum(-low, high) * abs(scale), 0)
    assert (abs(levels * scale - rotated) <= 0.501 * abs(scale) + beyond).all()
    largest = np.take_along_axis(rotated, abs(rotated).argmax(-1)[:, None], -1)
    kept = np.take_along_axis(levels * scale, abs(rotated).argmax(-1)[:, None], -1)
    np.testing.assert_allclose(kept, largest, rtol=1e-3)


@integer_types
def test_a_channel_that_stands_out_costs_the_others_little(kv_type: str, low: int, high: int) -> None:
    """One element in 64 is 30 times as large: without the rotation the others would be rounded to 30/high or so."""
    x = heads(200, 64)
    x[:, 5] *= 30
    error = through(kv_type, x) - x
    unrotated = abs(x).max(-1, keepdims=True) / high
    assert np.sqrt((error**2).mean()) < 0.5 * np.sqrt((unrotated**2 / 12).mean())


@given(st.integers(1, 256))
def test_the_rotation_undoes_itself(dim: int) -> None:
    x = heads(3, dim).astype(np.float64)
    run = dim & -dim
    np.testing.assert_allclose(rotate(rotate(x)) / run, x, atol=1e-12)
    np.testing.assert_allclose((rotate(x) ** 2).sum(-1), run * (x**2).sum(-1), rtol=1e-12)
    signs = rotate(np.eye(dim))
    assert (abs(signs).sum(-1) == run).all()


@integer_types
def test_zeros_stay_zeros_and_no_number_is_seen_by_all(kv_type: str, low: int, high: int) -> None:
    x = heads(4, 32)
    x[0] = 0
    x[1] *= 1e-30  # below the scale's range
    x[2, 3] = np.nan
    x[3, 3] = 3e38
    out = through(kv_type, x)
    assert (out[:2] == 0).all()
    assert np.isnan(out[2:]).all()


def test_the_last_element_of_an_odd_head_is_kept() -> None:
    x = np.zeros((1, 17), np.float32)
    x[0, 16] = 7.0
    np.testing.assert_allclose(through("int4", x), x, rtol=1e-3)
