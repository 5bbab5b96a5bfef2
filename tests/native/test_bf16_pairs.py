"""bf16 weights on bf16 activations, where this machine multiplies pairs: products, and one order for all rows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kvwise.backends.native import _native
from kvwise.checkpoint.quants import dequantize, quantize
from kvwise.program.ir import SlotType
from kvwise.spec.dtypes import TENSOR_TYPES
from native.matrices import ISAS, product

BF16 = TENSOR_TYPES["bf16"]
pairs = pytest.mark.skipif(not _native.pairs_are_fast(ISAS[0]), reason="this machine does not multiply pairs of bf16")


def rows_of(x: NDArray[np.float32], isa: str) -> NDArray[np.uint8]:
    out = np.full((len(x), SlotType.BF16.row_bytes(x.shape[1])), 0xAA, np.uint8)
    _native.kernels.narrow(isa, x, out)
    return out


@pytest.mark.parametrize("isa", ISAS)
def test_activations_are_rounded_to_nearest_even_and_filled_up_with_a_zero(isa: str) -> None:
    rng = np.random.default_rng(1)
    for width in (1, 2, 3, 15, 16, 17, 31, 33, 64):
        x = rng.standard_normal((3, width)).astype(np.float32)
        x[0, 0] = np.float32(1 + 2.0**-8)  # a tie
        expected = np.zeros((3, 2 * (width + width % 2)), np.uint8)
        expected[:, : 2 * width] = quantize(x, BF16)
        np.testing.assert_array_equal(rows_of(x, isa), expected)


@pairs
def test_products_are_within_float32_rounding_of_the_rounded_numbers_products() -> None:
    rng = np.random.default_rng(2)
    for inputs in (2, 3, 16, 31, 64, 577):
        for outputs in (1, 15, 16, 70):
            raw = quantize(rng.standard_normal((outputs, inputs)), BF16)
            x = rng.standard_normal((9, inputs)).astype(np.float32)
            weight, numbers = dequantize(raw, BF16, np.float64), dequantize(quantize(x, BF16), BF16, np.float64)
            out = product("bf16", raw, inputs, rows_of(x, ISAS[0]), ISAS[0])
            allowed = (inputs + 4) * np.finfo(np.float32).eps * (np.abs(numbers) @ np.abs(weight).T)
            assert (np.abs(out - numbers @ weight.T) <= allowed).all(), (inputs, outputs)


@pairs
def test_every_count_of_rows_and_every_cut_gives_the_bits_of_one_row_alone() -> None:
    rng = np.random.default_rng(3)
    raw = quantize(rng.standard_normal((150, 333)), BF16)
    x = rows_of(rng.standard_normal((33, 333)).astype(np.float32), ISAS[0])
    alone = np.concatenate([product("bf16", raw, 333, x[r : r + 1], ISAS[0]) for r in range(33)])
    for rows in range(34):
        np.testing.assert_array_equal(product("bf16", raw, 333, x[:rows], ISAS[0]), alone[:rows])
    for threads, tiles, cut in ((1, 1, 1), (2, 2, 7), (3, 4, 12)):
        whole = product("bf16", raw, 333, x, ISAS[0], threads=threads, tiles=tiles, rows=cut)
        np.testing.assert_array_equal(whole, alone)


@pytest.mark.parametrize("isa", [isa for isa in ISAS if not _native.pairs_are_fast(isa)])
def test_kernels_without_pairs_refuse_them(isa: str) -> None:
    raw = quantize(np.ones((16, 4)), BF16)
    with pytest.raises(_native.NativeError, match="not multiplied here"):
        product("bf16", raw, 4, np.zeros((1, 8), np.uint8), isa)
