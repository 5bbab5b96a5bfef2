"""Our own weight types: what is stored, element by element, and how far from the numbers it may be."""

from __future__ import annotations

import numpy as np
import pytest

from kvwise.checkpoint.quants import dequantize, quantize
from kvwise.spec.dtypes import TENSOR_TYPES


def test_an_i8_row_is_its_scale_and_its_codes() -> None:
    x = np.random.default_rng(1).standard_normal((5, 96)).astype(np.float32)
    raw = quantize(x, TENSOR_TYPES["i8"])
    assert raw.shape == (5, 4 + 96)
    for row, numbers in zip(raw, x, strict=True):
        scale = row[:4].view("<f4")[0]
        assert scale == np.abs(numbers).max() / np.float32(127)
        codes = row[4:].view(np.int8)
        assert np.abs(codes).max() == 127
        assert (np.abs(codes * scale - numbers) <= 0.5001 * scale).all()
    codes, scales = raw[:, 4:].view(np.int8), np.ascontiguousarray(raw[:, :4]).view("<f4")
    np.testing.assert_array_equal(dequantize(raw, TENSOR_TYPES["i8"]), codes * scales)


@pytest.mark.parametrize("group", [64, 128])
def test_a_group_of_nibbles_is_its_scale_and_runs_of_32(group: int) -> None:
    kind = TENSOR_TYPES[f"i4_{group}"]
    x = np.random.default_rng(2).standard_normal((3, 2 * group)).astype(np.float32)
    raw = quantize(x, kind)
    assert raw.shape == (3, 2 * (2 + group // 2))
    values = dequantize(raw, kind)
    for row in range(3):
        for g in range(2):
            block = raw[row, g * kind.block_bytes : (g + 1) * kind.block_bytes]
            scale = np.float32(block[:2].view("<f2")[0])
            numbers = x[row, g * group : (g + 1) * group]
            for i in range(group):
                run, at = divmod(i, 32)
                code = int(block[2 + 16 * run + at % 16]) >> (4 * (at // 16)) & 15
                assert values[row, g * group + i] == scale * (code - 8)
            assert (np.abs(values[row, g * group : (g + 1) * group] - numbers) <= 1.01 * np.abs(scale)).all()
