"""The row kernels against float64 at every small length, and their bits across instruction sets."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from kvwise.backends.native import _native
from kvwise.program.ir import Q8_BLOCK, SlotType
from native.matrices import q8_rows

ISAS: list[str] = _native.isas()
K = _native.kernels
ROUNDOFF = 2.0**-24
LENGTHS = [*range(1, 2 * 32 + 2), 576, 1000]
UNTOUCHED = np.float32(-12345.0)

Floats = NDArray[np.float32]
F64 = NDArray[np.float64]
isas = pytest.mark.parametrize("isa", ISAS)


def odd(x: Floats) -> Floats:
    """A copy of x that starts 4 bytes past any vector's alignment."""
    copy = np.empty(x.size + 1, np.float32)[1:]
    copy[:] = x
    return copy


def output(n: int) -> tuple[Floats, Floats]:
    """A misaligned buffer, and all of it with what follows, where nothing may be written."""
    whole = np.full(n + 33, UNTOUCHED)
    return whole[1 : n + 1], whole


def on_every_isa(call: Callable[[str, Floats], None], n: int) -> Floats:
    """call(isa, out) on every instruction set: the bits that all of them give."""
    results = []
    for isa in ISAS:
        out, whole = output(n)
        call(isa, out)
        assert whole[0] == UNTOUCHED
        assert (whole[n + 1 :] == UNTOUCHED).all()
        results.append(out)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].view(np.uint32), other.view(np.uint32))
    return results[0]


def normal(n: int, size: float = 1.0, seed: int = 0) -> Floats:
    return odd((size * np.random.default_rng([seed, n]).standard_normal(n)).astype(np.float32))


# ---- RmsNorm


def norm_truth(x: Floats, weight: Floats, eps: float, offset: float) -> F64:
    groups = x.astype(np.float64).reshape(-1, weight.size)
    rms = np.sqrt((groups**2).mean(axis=1, keepdims=True) + np.float32(eps))
    return np.ravel(groups / rms * (weight.astype(np.float64) + offset))


@pytest.mark.parametrize(("eps", "offset"), [(1e-6, 0.0), (1e-5, 1.0)])
@pytest.mark.parametrize("groups", [1, 3])
def test_rms_norm(groups: int, eps: float, offset: float) -> None:
    for n in LENGTHS:
        x, weight = normal(groups * n, 3.0), normal(n, seed=1)
        out = on_every_isa(lambda isa, out: K.rms_norm(isa, x, weight, out, eps, offset), groups * n)  # noqa: B023
        expected = norm_truth(x, weight, eps, offset)
        # Each of the 64 running sums takes n / 64 terms, 6 more join them; half of it after the root; 6 roundings.
        bound = ROUNDOFF * ((n / 64 + 7) / 2 + 6)
        assert (abs(out - expected) <= bound * abs(expected)).all()


@isas
def test_rms_norm_of_zeros_is_zero_and_works_in_place(isa: str) -> None:
    x = np.zeros(70, np.float32)
    K.rms_norm(isa, x, np.ones(70, np.float32), x, 1e-6, 0.0)
    assert (x == 0).all()
    x, weight = normal(70), normal(35)
    out = np.empty_like(x)
    K.rms_norm(isa, x, weight, out, 1e-6, 0.0)
    K.rms_norm(isa, x, weight, x, 1e-6, 0.0)
    np.testing.assert_array_equal(x, out)


# ---- Quantize


def quantized(x: Floats, group: int = Q8_BLOCK) -> tuple[NDArray[np.uint8], Floats]:
    """The row of bytes that kvwise.program.ir.Quantize describes, and the numbers that it stands for."""
    padded = np.zeros(-(-x.size // group) * group, np.float32)
    padded[: x.size] = x
    groups = padded.reshape(-1, group)
    with np.errstate(all="ignore"):
        largest = abs(groups).max(axis=1)
        scale = np.where(largest < 2.0**-120, np.float32(0), largest / np.float32(127))
        ordinary = (scale > 0) & np.isfinite(scale)
        product = groups * (np.float32(1) / scale)[:, None]
        q = np.where(ordinary[:, None], np.rint(product), 0).astype(np.int8)
        numbers = (q * scale.astype(np.float64)[:, None]).ravel()[: x.size]
    width = -(-x.size // Q8_BLOCK) * Q8_BLOCK
    scales = np.repeat(scale, group // Q8_BLOCK)[: width // Q8_BLOCK]
    return q8_rows(q.reshape(1, -1)[:, :width], scales[None], group)[0], numbers


def quantize(isa: str, x: Floats, group: int = Q8_BLOCK, *, twice: bool = False) -> NDArray[np.uint8]:
    out = np.full((SlotType.Q8X2 if twice else SlotType.Q8).row_bytes(x.size), 0xAA, np.uint8)
    K.quantize(isa, x, out, group, twice)
    return out


@isas
@pytest.mark.parametrize("group", [32, 128])
def test_quantization_is_the_formula_to_the_bit(isa: str, group: int) -> None:
    for n in (*LENGTHS, 97, 128, 129, 160, 192, 224, 300):
        for exponent in (-150, -126, -119, -20, 0, 20, 120):
            x = odd(np.ldexp(normal(n, seed=exponent + 200), exponent).astype(np.float32))
            np.testing.assert_array_equal(quantize(isa, x, group), quantized(x, group)[0])


@isas
@pytest.mark.parametrize("group", [32, 128])
def test_what_the_first_rounding_left_is_quantized_in_the_second_row(isa: str, group: int) -> None:
    for n in LENGTHS:
        x = odd(normal(n, seed=n))
        first, numbers = quantized(x, group)
        left = (x.astype(np.float64) - numbers).astype(np.float32)
        second, rest = quantized(left, group)
        np.testing.assert_array_equal(quantize(isa, x, group, twice=True), np.concatenate([first, second]))
        assert (np.abs(numbers + rest - x) <= 2.0**-15 * np.abs(x).max(initial=0)).all()


@isas
def test_quantization_rounds_ties_to_even_and_never_passes_127(isa: str) -> None:
    ties = np.r_[np.arange(-127, 128, dtype=np.float32) / 2, 127, np.zeros(32, np.float32)].astype(np.float32)
    for x in (ties, 3 * ties, np.nextafter(ties, np.float32(9))):
        row = quantize(isa, x)
        np.testing.assert_array_equal(row, quantized(x)[0])
        assert row[: x.size].view(np.int8).min() >= -127


@isas
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 5, 15, 16, 31])
def test_a_block_with_an_infinity_or_nan_keeps_it_in_its_scale_alone(isa: str, bad: float, at: int) -> None:
    x = normal(64)
    x[at] = bad
    row = quantize(isa, x)
    scale = row[64:72].view(np.float32)
    assert not np.isfinite(scale[0])
    assert (row[:32] == 0).all()
    np.testing.assert_array_equal(row[32:64], quantized(x)[0][32:64])
    assert scale[1] == abs(x[32:]).max() / np.float32(127)


# ---- Rope, Add


@pytest.mark.parametrize(
    ("head_dim", "rotary_dim"), [(2, 2), (16, 16), (64, 64), (80, 80), (96, 24), (100, 50), (36, 34)]
)
def test_rope_turns_pairs_half_a_rotation_apart_and_copies_the_rest(head_dim: int, rotary_dim: int) -> None:
    half = rotary_dim // 2
    angle = np.random.default_rng(half).uniform(0, 7, half)
    cos, sin = odd(np.cos(angle).astype(np.float32)), odd(np.sin(angle).astype(np.float32))
    x = normal(3 * head_dim)
    out = on_every_isa(lambda isa, out: K.rope(isa, x, cos, sin, out, head_dim), x.size)
    heads, turned = x.astype(np.float64).reshape(3, -1), out.reshape(3, -1)
    a, b = heads[:, :half], heads[:, half:rotary_dim]
    bound = 2 * ROUNDOFF * (abs(a) + abs(b))
    assert (abs(turned[:, :half] - (a * cos - b * sin)) <= bound).all()
    assert (abs(turned[:, half:rotary_dim] - (b * cos + a * sin)) <= bound).all()
    np.testing.assert_array_equal(turned[:, rotary_dim:], heads[:, rotary_dim:])
    for isa in ISAS:
        again = odd(x)
        K.rope(isa, again, cos, sin, again, head_dim)
        np.testing.assert_array_equal(again, out)


def test_add() -> None:
    for n in LENGTHS:
        x, y = normal(n), normal(n, seed=1)
        out = on_every_isa(lambda isa, out: K.add(isa, x, y, out), n)  # noqa: B023
        np.testing.assert_array_equal(out, x + y)


# ---- Glu, Softcap


def phi(x: F64) -> F64:
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])


def sigmoid(x: F64) -> F64:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


ACTIVATIONS: dict[str, Callable[[F64], F64]] = {
    "silu": lambda x: x * sigmoid(x),
    "gelu_tanh": lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "gelu_erf": lambda x: x * phi(x),
    "relu": lambda x: np.maximum(x, 0),
}
# Relative error in units of roundoff: a constant, plus the rounding of an argument that the exponential magnifies.
ERROR: dict[str, Callable[[F64], F64]] = {
    "silu": lambda x: 6 + 0 * x,
    "gelu_tanh": lambda x: 8 + 4 * (abs(x) + 0.13 * abs(x) ** 3),
    "gelu_erf": lambda x: 8 + x**2,
    "relu": lambda x: 0 * x,
}
TINY = 2.0**-120  # weights below 2^-126 are flushed to 0


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_accurate_everywhere(activation: str) -> None:
    rng = np.random.default_rng(0)
    dense = np.linspace(-14, 14, 20001), rng.standard_normal(5000), -np.exp2(np.linspace(-40, 6, 500)), (0, 90, 1e4)
    gate = odd(np.concatenate(dense).astype(np.float32))
    up = odd(np.ones_like(gate))
    out = on_every_isa(lambda isa, out: K.glu(isa, gate, up, out, activation), gate.size)
    x = gate.astype(np.float64)
    expected = ACTIVATIONS[activation](x)
    assert (abs(out - expected) <= ROUNDOFF * ERROR[activation](x) * abs(expected) + TINY).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_glu_multiplies_by_up_at_any_length(activation: str) -> None:
    for n in LENGTHS:
        gate, up = normal(n), normal(n, seed=1)
        one = on_every_isa(lambda isa, out: K.glu(isa, gate, odd(np.ones_like(gate)), out, activation), n)  # noqa: B023
        out = on_every_isa(lambda isa, out: K.glu(isa, gate, up, out, activation), n)  # noqa: B023
        np.testing.assert_array_equal(out, one * up)


@isas
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_nan_stays_a_nan(isa: str, activation: str) -> None:
    gate, out = normal(20), np.empty(20, np.float32)
    gate[7] = np.nan
    K.glu(isa, gate, np.ones(20, np.float32), out, activation)
    assert list(np.flatnonzero(np.isnan(out))) == [7]
    K.softcap(isa, gate, out, 30.0)
    assert list(np.flatnonzero(np.isnan(out))) == [7]


@pytest.mark.parametrize("cap", [1.0, 30.0, 50.0])
def test_soft_caps(cap: float) -> None:
    dense = np.r_[np.linspace(-12, 12, 20001), np.exp2(np.linspace(-60, 30, 500)), 0.0, np.inf, -np.inf]
    x = odd((cap * dense).astype(np.float32))
    out = on_every_isa(lambda isa, out: K.softcap(isa, x, out, cap), x.size)
    expected = cap * np.tanh(x.astype(np.float64) / cap)
    assert (abs(out - expected) <= 6 * ROUNDOFF * abs(expected)).all()
    assert (abs(out) <= cap).all()
    for n in LENGTHS:
        short = odd(x[1000 : 1000 + n])
        np.testing.assert_array_equal(
            on_every_isa(lambda isa, out: K.softcap(isa, short, out, cap), n),  # noqa: B023
            out[1000 : 1000 + n],
        )
