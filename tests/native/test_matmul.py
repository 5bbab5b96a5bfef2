"""Every matmul kernel against an oracle, at every small size, and its bits against any other way to compute them."""

from __future__ import annotations

import numpy as np
import pytest

from kvwise.backends.native import _native, layout
from kvwise.checkpoint.quants import dequantize, unpack
from native.matrices import (
    ALL_TYPES,
    FLOAT_TYPES,
    ISAS,
    Q8_TYPES,
    UNPACKED_TYPES,
    product,
    q8_group,
    q8_rows,
    random_matrix,
    random_x,
    set_scales,
    stored_type,
    truth,
)

LANES = layout.LANES
# Lengths of the reduction, by the elements of a block: an odd number of blocks, and of pairs of them.
INPUTS_OF_BLOCKS = {1: 67, 32: 35 * 32, 64: 19 * 64, 128: 9 * 128, 256: 3 * 256}
isas = pytest.mark.parametrize("isa", ISAS)


def some_inputs(kind: str) -> list[int]:
    """Lengths of the reduction: every one up to two vectors where rows are free, else whole blocks, odd and even."""
    if kind in FLOAT_TYPES:
        return [*range(1, 2 * LANES + 2), 100]
    elements = stored_type(kind).block_elements
    return [elements * n for n in ((1, 2, 3) if elements == 256 else (1, 2, 3, 15, 16, 17, 33))]


@isas
@pytest.mark.parametrize("kind", Q8_TYPES)
def test_sums_of_codes_are_exact_integers(kind: str, isa: str) -> None:
    rng = np.random.default_rng(1)
    for inputs in some_inputs(kind):
        raw = random_matrix(kind, 33, inputs, rng)
        set_scales(kind, raw, lambda n: np.ones(n))
        codes = rng.integers(-127, 128, (5, inputs)).astype(np.int8)
        out = product(kind, raw, inputs, q8_rows(codes, np.ones((5, inputs // 32), np.float32), q8_group(kind)), isa)
        weight = dequantize(raw, stored_type(kind), np.float64)
        np.testing.assert_array_equal(out, codes.astype(np.float64) @ weight.T)


@isas
def test_the_largest_sums_of_a_k_quant_are_exact(isa: str) -> None:
    """32 weights of -32 · -128 times 127 are just below 2^24, where float32 ends to hold every integer."""
    raw = np.zeros((16, 210), np.uint8)
    raw[:, 192:208] = 0x80
    set_scales("q6_k", raw, lambda n: np.ones(n))
    for rows in (1, 3, 40):
        for x in (-127, 127):
            codes = np.zeros((rows, 256), np.int8)
            codes[:, 64:96] = x
            out = product("q6_k", raw, 256, q8_rows(codes, np.ones((rows, 8), np.float32)), isa)
            assert (out == 32 * 32 * 128 * x).all()


@isas
@pytest.mark.parametrize("kind", Q8_TYPES)
@pytest.mark.parametrize("fill", [0x00, 0x80, 0x7F, 0xFF])
def test_extreme_codes_and_scales_are_exact(kind: str, fill: int, isa: str) -> None:
    inputs = max(256, stored_type(kind).block_elements)
    raw = np.full((16, stored_type(kind).row_bytes(inputs)), fill, np.uint8)
    set_scales(kind, raw, lambda n: np.ones(n))
    weight = dequantize(raw, stored_type(kind), np.float64)
    for x in (-127, 127):
        codes = np.zeros((20, inputs), np.int8)
        codes[:, 32:64] = x
        x_rows = q8_rows(codes, np.ones((20, inputs // 32), np.float32), q8_group(kind))
        out = product(kind, raw, inputs, x_rows, isa)
        np.testing.assert_array_equal(out, codes.astype(np.float64) @ weight.T)


@isas
@pytest.mark.parametrize(("stored", "code"), [(0x80, -128), (0x7F, 127), (0x81, -127)])
def test_the_largest_8_bit_codes_do_not_saturate(stored: int, code: int, isa: str) -> None:
    raw = np.full((16, 4 * 34), stored, np.uint8)
    set_scales("q8_0", raw, lambda n: np.ones(n))
    for x in (-127, 127):
        codes = np.full((3, 128), x, np.int8)
        out = product("q8_0", raw, 128, q8_rows(codes, np.ones((3, 4), np.float32)), isa)
        assert (out == 128 * code * x).all()


@isas
@pytest.mark.parametrize("kind", ALL_TYPES)
def test_products_are_within_float32_rounding_of_the_truth(kind: str, isa: str) -> None:
    rng = np.random.default_rng(2)
    for inputs in some_inputs(kind):
        for outputs in (1, 15, 16, 17, 70):
            raw = random_matrix(kind, outputs, inputs, rng)
            x, numbers = random_x(kind, 3, inputs, rng)
            expected, allowed = truth(kind, raw, numbers)
            out = product(kind, raw, inputs, x, isa)
            assert (np.abs(out - expected) <= allowed).all(), (inputs, outputs)


@isas
@pytest.mark.parametrize("kind", ALL_TYPES)
def test_every_count_of_outputs_and_rows_gives_the_bits_of_one_alone(kind: str, isa: str) -> None:
    rng = np.random.default_rng(3)
    inputs = max(64, stored_type(kind).block_elements)
    raw = random_matrix(kind, 5 * LANES + 3, inputs, rng)
    x, _ = random_x(kind, 2 * LANES + 1, inputs, rng)
    alone = np.concatenate([product(kind, raw, inputs, x[r : r + 1], isa) for r in range(len(x))])
    for rows in range(len(x) + 1):
        np.testing.assert_array_equal(product(kind, raw, inputs, x[:rows], isa), alone[:rows])
    for outputs in range(1, 2 * LANES + 2):
        np.testing.assert_array_equal(product(kind, raw[:outputs], inputs, x[:7], isa), alone[:7, :outputs])


@isas
@pytest.mark.parametrize("kind", ALL_TYPES)
def test_threads_and_cuts_of_the_work_do_not_change_a_bit(kind: str, isa: str) -> None:
    rng = np.random.default_rng(4)
    inputs = INPUTS_OF_BLOCKS[stored_type(kind).block_elements]
    raw = random_matrix(kind, 150, inputs, rng)
    x, _ = random_x(kind, 40, inputs, rng)
    whole = product(kind, raw, inputs, x, isa, tiles=100, rows=100)
    for threads in (1, 2, 3):
        for tiles, rows in ((1, 1), (2, 7), (3, 40), (4, 12)):
            cut = product(kind, raw, inputs, x, isa, threads=threads, tiles=tiles, rows=rows)
            np.testing.assert_array_equal(cut, whole)


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_all_instruction_sets_give_the_same_bits(kind: str) -> None:
    rng = np.random.default_rng(5)
    inputs = INPUTS_OF_BLOCKS[stored_type(kind).block_elements]
    raw = random_matrix(kind, 50, inputs, rng)
    x, _ = random_x(kind, 21, inputs, rng)
    first, *others = (product(kind, raw, inputs, x, isa) for isa in ISAS)
    for other in others:
        np.testing.assert_array_equal(other, first)


@isas
@pytest.mark.parametrize("kind", ["f32", "q8_0", "q8_0+q8x2", "q4_1", "q4_1+f32", "q6_k", "q2_k", "i8"])
def test_any_start_of_the_arrays_is_fine_and_nothing_beyond_them_is_written(kind: str, isa: str) -> None:
    rng = np.random.default_rng(6)
    inputs, outputs, rows = 256, 21, 9
    raw = random_matrix(kind, outputs, inputs, rng)
    x, _ = random_x(kind, rows, inputs, rng)
    bias = rng.standard_normal(outputs).astype(np.float32)
    expected = product(kind, raw, inputs, x, isa) + bias
    packed = _native.kernels.PackedMatrix(stored_type(kind).name, outputs, inputs, raw)
    for shift in range(LANES):
        floats = np.full(shift + rows * outputs + LANES, 7.0, np.float32)
        moved_bias = np.concatenate([np.zeros(shift, np.float32), bias])[shift:]
        moved_x = np.concatenate([np.zeros(4 * shift, np.uint8), x.reshape(-1)])[4 * shift :]
        packed.matmul(isa, moved_x, moved_bias, floats[shift : shift + rows * outputs], 4, 192)
        np.testing.assert_array_equal(floats[shift : shift + rows * outputs].reshape(rows, outputs), expected)
        assert (floats[:shift] == 7.0).all()
        assert (floats[shift + rows * outputs :] == 7.0).all()


@isas
@pytest.mark.parametrize("kind", ALL_TYPES)
def test_a_looked_up_row_is_the_dequantized_row_times_the_scale(kind: str, isa: str) -> None:
    rng = np.random.default_rng(7)
    inputs = INPUTS_OF_BLOCKS[stored_type(kind).block_elements]
    raw = random_matrix(kind, 37, inputs, rng)
    packed = _native.kernels.PackedMatrix(stored_type(kind).name, 37, inputs, raw)
    for scale in (1.0, 0.25):
        out = np.empty((37, inputs), np.float32)
        for row in range(37):
            packed.row(isa, row, scale, out[row])
        # Each value is rounded once from the exact scale · code + offset.
        exact = dequantize(raw, stored_type(kind), np.float64).astype(np.float32)
        np.testing.assert_array_equal(out, exact * np.float32(scale))


@isas
@pytest.mark.parametrize("kind", [*Q8_TYPES, *UNPACKED_TYPES])
def test_every_code_of_a_block_reaches_its_place(kind: str, isa: str) -> None:
    """x picks one input at a time, so that the product is the weight itself."""
    rng = np.random.default_rng(8)
    inputs = max(128, stored_type(kind).block_elements)
    raw = random_matrix(kind, 16, inputs, rng)
    x = np.eye(inputs, dtype=np.float32).view(np.uint8).reshape(inputs, -1)
    if kind in Q8_TYPES:
        x = q8_rows(np.eye(inputs, dtype=np.int8), np.ones((inputs, inputs // 32), np.float32), q8_group(kind))
    out = product(kind, raw, inputs, x, isa)
    np.testing.assert_array_equal(out.T, dequantize(raw, stored_type(kind), np.float64).astype(np.float32))
    assert len(np.unique(unpack(raw, stored_type(kind)).codes)) > 2


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_the_plan_and_the_kernels_agree_on_the_size_of_a_tile(kind: str) -> None:
    tensor_type = stored_type(kind)
    for blocks in range(1, 40):
        inputs = blocks * tensor_type.block_elements
        planned = layout.tile_bytes(tensor_type, inputs)
        assert planned == _native.tile_bytes(tensor_type.name, inputs)
        assert planned <= 1.05 * LANES * tensor_type.row_bytes(inputs) + layout.LINE
