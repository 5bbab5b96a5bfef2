"""Block types taken apart: exact against a plain loop over the struct's bytes, and against the format package."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvwise.checkpoint.quants import dequantize, quantize, unpack
from kvwise.errors import SpecError
from kvwise.spec.dtypes import TENSOR_TYPES

BLOCK_TYPES = [n for n in TENSOR_TYPES if not TENSOR_TYPES[n].is_float and TENSOR_TYPES[n].ggml_id is not None]
GOLDENS = Path(__file__).parent.parent / "goldens" / "quants"


def random_blocks(name: str, rows: int = 3, blocks: int = 2, seed: int = 0) -> NDArray[np.uint8]:
    """Rows of random blocks whose half-precision scales are ordinary numbers."""
    t = TENSOR_TYPES[name]
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (rows * blocks, t.block_bytes), dtype=np.uint8)
    for at in HALF_AT[name]:
        halves = rng.uniform(-2, 2, rows * blocks).astype(np.float16)
        raw[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    return raw.reshape(rows, -1)


HALF_AT = {
    "q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q8_0": [0],
    "q2_k": [80, 82], "q3_k": [108], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208],
}  # fmt: skip


def half(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def six_bits(scales: bytes, g: int) -> tuple[int, int]:
    """Scale and min of group g, of the 12 bytes that q4_k and q5_k share."""
    if g < 4:
        return scales[g] & 63, scales[g + 4] & 63
    return scales[g + 4] & 15 | scales[g - 4] >> 6 << 4, scales[g + 4] >> 4 | scales[g] >> 6 << 4


def plain_value(name: str, b: bytes, i: int) -> float:
    """Element i of one block, in exact arithmetic: the layouts of ggml-common.h, one element at a time."""
    if name in ("q4_0", "q4_1", "q5_0", "q5_1"):
        codes_at = TENSOR_TYPES[name].block_bytes - 16
        code = b[codes_at + i % 16] >> (4 * (i // 16)) & 15
        if name.startswith("q5"):
            code |= (int.from_bytes(b[codes_at - 4 : codes_at], "little") >> i & 1) << 4
        if name.endswith("_1"):
            return half(b, 0) * code + half(b, 2)
        return half(b, 0) * (code - (8 if name == "q4_0" else 16))
    if name == "q8_0":
        return half(b, 0) * struct.unpack_from("<b", b, 2 + i)[0]
    chunk, within = divmod(i, 128)
    if name in ("q2_k", "q3_k"):
        codes_at = 16 if name == "q2_k" else 32
        code = b[codes_at + 32 * chunk + within % 32] >> (2 * (within // 32)) & 3
        if name == "q2_k":
            scale = b[i // 16]
            return half(b, 80) * (scale & 15) * code - half(b, 82) * (scale >> 4)
        g = i // 16
        scale = b[96 + g % 8] >> (4 * (g // 8)) & 15 | (b[104 + g % 4] >> (2 * (g // 4)) & 3) << 4
        third = b[i % 32] >> (i // 32) & 1
        return half(b, 108) * (scale - 32) * (code - (0 if third else 4))
    if name in ("q4_k", "q5_k"):
        codes_at = 16 if name == "q4_k" else 48
        g = i // 32
        code = b[codes_at + 32 * (g // 2) + i % 32] >> (4 * (g % 2)) & 15
        if name == "q5_k":
            code |= (b[16 + i % 32] >> g & 1) << 4
        scale, low = six_bits(b[4:16], g)
        return half(b, 0) * scale * code - half(b, 2) * low
    quarter, at = divmod(within, 32)
    low = b[64 * chunk + 32 * (quarter % 2) + at] >> (4 * (quarter // 2)) & 15
    high = b[128 + 32 * chunk + at] >> (2 * quarter) & 3
    return half(b, 208) * struct.unpack_from("<b", b, 192 + i // 16)[0] * ((low | high << 4) - 32)


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_every_element_is_what_its_bits_say(name: str) -> None:
    t = TENSOR_TYPES[name]
    raw = random_blocks(name)
    blocks = raw.reshape(-1, t.block_bytes)
    expected = [plain_value(name, bytes(b), i) for b in blocks for i in range(t.block_elements)]
    got = dequantize(raw, t, np.float64)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got.reshape(-1), expected)


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_float32_rounds_the_truth_once(name: str) -> None:
    """The product is exact in float32, so only the addition of an offset rounds."""
    raw = random_blocks(name, seed=1)
    truth = dequantize(raw, TENSOR_TYPES[name], np.float64)
    single = dequantize(raw, TENSOR_TYPES[name])
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single, truth.astype(np.float32))


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_the_parts_multiply_out_to_the_values(name: str) -> None:
    t = TENSOR_TYPES[name]
    raw = random_blocks(name, seed=2)
    parts = unpack(raw, t)
    assert parts.codes.dtype == np.int8
    assert parts.group_elements in (16, 32)
    scales = np.repeat(parts.scales, parts.group_elements, axis=1)
    offsets = 0 if parts.offsets is None else np.repeat(parts.offsets, parts.group_elements, axis=1)
    values = parts.codes.astype(np.float64) * scales + offsets
    np.testing.assert_array_equal(values, dequantize(raw, t, np.float64))


@pytest.mark.parametrize("name", [n for n in TENSOR_TYPES if TENSOR_TYPES[n].ggml_id is not None])
def test_values_are_the_format_packages_bit_for_bit(name: str) -> None:
    quants = pytest.importorskip("gguf.quants")
    from gguf import GGMLQuantizationType

    raw = np.zeros((4, 0), np.uint8)
    t = TENSOR_TYPES[name]
    if t.is_float:
        raw = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32).view(np.uint8)
    else:
        raw = random_blocks(name, rows=8, blocks=4, seed=3)
    theirs = quants.dequantize(raw, GGMLQuantizationType[name.upper()])
    np.testing.assert_array_equal(dequantize(raw, t).view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("name", [*BLOCK_TYPES, "f16", "bf16"])
def test_recorded_blocks_give_the_recorded_values(name: str) -> None:
    golden = np.load(GOLDENS / f"{name}.npz")
    np.testing.assert_array_equal(dequantize(golden["raw"], TENSOR_TYPES[name]), golden["values"])


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"])
def test_quantized_bytes_are_the_format_packages(name: str) -> None:
    quants = pytest.importorskip("gguf.quants")
    from gguf import GGMLQuantizationType

    x = np.random.default_rng(4).standard_normal((64, 256)).astype(np.float32)
    x[0], x[1], x[2] = 0, x[1] * 1e-9, np.round(x[2] * 2) / 2
    x[3], x[4], x[5] = 1, -3, x[5] * 1e3
    theirs = quants.quantize(x, GGMLQuantizationType[name.upper()])
    np.testing.assert_array_equal(quantize(x, TENSOR_TYPES[name]), theirs.view(np.uint8).reshape(64, -1))


@given(st.integers(0, 2**32 - 1), st.sampled_from(["q8_0", "q4_0", "q4_1"]), st.floats(1e-3, 1e3))
def test_a_value_comes_back_within_half_a_step(seed: int, name: str, size: float) -> None:
    t = TENSOR_TYPES[name]
    x = (np.random.default_rng(seed).standard_normal((4, 64)) * size).astype(np.float32)
    raw = quantize(x, t)
    scales = np.abs(np.repeat(unpack(raw, t).scales, 32, axis=1)).astype(np.float64)
    error = np.abs(dequantize(raw, t, np.float64) - x)
    # q4_0 has no code for +8 scales: the far end is off by up to one step. Half-precision scales add 2**-11 of the
    # largest value, that is of 127, 8 or 15 steps and the offset.
    steps = {"q8_0": 0.5, "q4_0": 1.0, "q4_1": 0.5}[name]
    assert np.all(error <= steps * scales + np.abs(x).max() * 2**-9)


@given(st.integers(0, 2**32 - 1))
def test_every_bfloat16_and_half_survives_a_round_trip(seed: int) -> None:
    raw = np.random.default_rng(seed).integers(0, 256, (2, 64), dtype=np.uint8)
    for name in ("f16", "bf16"):
        t = TENSOR_TYPES[name]
        values = dequantize(raw, t)
        keep = ~np.isnan(values)
        again = quantize(values, t)
        np.testing.assert_array_equal(again.view("<u2")[keep], raw.view("<u2")[keep])
        assert np.isnan(dequantize(again, t)[~keep]).all()


def test_bfloat16_rounds_to_nearest_even() -> None:
    bits = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800001], np.uint32)
    rounded = quantize(bits.view(np.float32)[None], TENSOR_TYPES["bf16"]).view("<u2")[0]
    assert [hex(n) for n in rounded] == ["0x3f80", "0x3f80", "0x3f82", "0x3f81", "0x7f80", "0x7fc0"]


def test_infinities_in_a_file_stay_silent() -> None:
    raw = np.zeros((1, 34), np.uint8)
    raw[0, :2] = np.array([np.inf], np.float16).view(np.uint8)
    values = dequantize(raw, TENSOR_TYPES["q8_0"])
    assert np.isnan(values).all()


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_partial_blocks_are_refused(name: str) -> None:
    t = TENSOR_TYPES[name]
    with pytest.raises(SpecError):
        dequantize(np.zeros((1, t.block_bytes + 1), np.uint8), t)
    if name in ("q8_0", "q4_0", "q4_1"):
        with pytest.raises(SpecError):
            quantize(np.zeros((1, 33), np.float32), t)


@pytest.mark.parametrize("name", ["q5_0", "q6_k"])
def test_types_that_are_only_read_say_so(name: str) -> None:
    with pytest.raises(SpecError, match="quantize to"):
        quantize(np.zeros((1, 256), np.float32), TENSOR_TYPES[name])
