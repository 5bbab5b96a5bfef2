"""How weights come in: from any place in a file, on any number of threads, with an end to it when something fails."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from checkpoint.writers import interleaved, llama_gguf
from kvwise.backends.native import _native
from kvwise.backends.native.backend import NATIVE, chosen_isa
from kvwise.backends.native.weight_cache import LAYOUT_VERSION
from kvwise.backends.protocol import LoadedProgram, LoadOptions
from kvwise.checkpoint import open_checkpoint
from kvwise.checkpoint.converted import ConvertedWeights
from kvwise.checkpoint.quants import QUANTIZERS, quantize
from kvwise.errors import BackendError, CheckpointError
from kvwise.models import build_program
from kvwise.program.builder import ProgramBuilder
from kvwise.program.ir import Program
from kvwise.spec.dtypes import TENSOR_TYPES
from kvwise.spec.kv import KV_TYPES, KVCacheSpec
from kvwise.spec.shape import StepLimits
from kvwise.spec.weights import StoredRows, WeightSource
from native.matrices import ALL_TYPES, FLOAT_TYPES, product, stored_type
from native.models import Part, RandomWeights, step

LIMITS = StepLimits(max_tokens=16, max_logits_rows=16, max_requests=1, max_context=16)
KINDS = [kind for kind in ALL_TYPES if "+" not in kind]


def one_matmul(outputs: int, inputs: int, *, bias: bool = False) -> Program:
    b = ProgramBuilder()
    y = b.matmul("y", b.embed("x", "embed.weight", 16, inputs), "w.weight", outputs, bias=bias)
    return b.build(b.gather_rows("out", y))


def source_of(program: Program, kind: str) -> RandomWeights:
    """The matmul's weight in `kind`, everything else in float32."""
    source = RandomWeights(program, "f32")
    source.tensors = {**source.tensors, "w.weight": RandomWeights(program, kind).tensors["w.weight"]}
    return source


def load(program: Program, source: WeightSource, threads: int = 1, **options: object) -> LoadedProgram:
    chosen = replace(LoadOptions(1, LIMITS, threads), **options)  # type: ignore[arg-type]
    return NATIVE.load(program, source, KVCacheSpec((), KV_TYPES["f16"]), chosen)


def outputs_of(model: LoadedProgram) -> NDArray[np.float32]:
    """[16, outputs]: of each row of the embedding."""
    return model.run(step([Part(list(range(16)), 0, 16, [0])])).copy()


def expected_outputs(source: RandomWeights, kind: str, rows: slice = slice(None)) -> NDArray[np.float32]:
    """The same from the kernels alone, of some rows of the weight."""
    x, raw = source.tensors["embed.weight"].raw, source.tensors["w.weight"].raw[rows]
    as_floats = kind + "+f32" if kind + "+f32" in ALL_TYPES else kind
    inputs = source.tensors["w.weight"].shape[1]
    return product(as_floats, np.ascontiguousarray(raw), inputs, np.ascontiguousarray(x), chosen_isa())


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_read_from_a_file_is_the_one_that_the_kernels_were_tested_with(kind: str, threads: int) -> None:
    elements = stored_type(kind).block_elements
    for outputs, inputs in ((1, elements), (16, 3 * elements), (70, 2 * elements), (33, 35 * elements)):
        program = one_matmul(outputs, inputs)
        source = source_of(program, kind)
        np.testing.assert_array_equal(outputs_of(load(program, source, threads)), expected_outputs(source, kind))


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_matrix_of_many_pieces_is_put_together_right(kind: str, threads: int) -> None:
    rows = 40_007 if kind == "q8_0" else 10_007  # two whole pieces and some, the last tile ragged
    program = one_matmul(rows, 128)
    source = source_of(program, kind)
    parts = [expected_outputs(source, kind, slice(at, at + 1000)) for at in range(0, rows, 1000)]
    np.testing.assert_array_equal(outputs_of(load(program, source, threads)), np.concatenate(parts, axis=1))


class InterleavedWeights(RandomWeights):
    """Stores the matmul's rows and bias as `heads` heads with their rotary pairs side by side."""

    def __init__(self, program: Program, heads: int) -> None:
        super().__init__(program, "f32")
        self._heads, self._stored = heads, dict(self.tensors)
        for name in ("w.weight", "w.bias"):
            tensor = self.tensors[name]
            rows = tensor.raw.reshape(tensor.shape[0], -1)
            self._stored[name] = replace(tensor, raw=interleaved(rows, heads))

    def locate(self, name: str) -> StoredRows:
        in_order, self.tensors = self.tensors, self._stored
        try:
            return replace(super().locate(name), interleaved_heads=self._heads if name.startswith("w.") else 0)
        finally:
            self.tensors = in_order


@settings(max_examples=60)
@given(heads=st.integers(1, 5), pairs=st.integers(1, 40), inputs=st.integers(1, 40), threads=st.integers(1, 3))
def test_interleaved_rotary_pairs_are_put_in_halves(heads: int, pairs: int, inputs: int, threads: int) -> None:
    program = one_matmul(2 * heads * pairs, inputs, bias=True)
    plain = outputs_of(load(program, RandomWeights(program, "f32")))
    np.testing.assert_array_equal(outputs_of(load(program, InterleavedWeights(program, heads), threads)), plain)


def test_progress_runs_from_nothing_to_all() -> None:
    program = one_matmul(20_000, 128)
    source, seen = source_of(program, "f32"), []
    load(program, source, threads=2, progress=lambda done, total: seen.append((done, total)))
    total = sum(tensor.nbytes for tensor in source.tensors.values())
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


# ---- what goes wrong


def test_what_is_to_be_done_meanwhile_is_done_once_by_the_caller() -> None:
    program, callers = one_matmul(16, 16), []
    load(program, source_of(program, "f32"), threads=2, meanwhile=lambda: callers.append(threading.current_thread()))
    assert callers == [threading.current_thread()]


class ZeroWeights(RandomWeights):
    """Zeros without end, as many as are asked for."""

    def __init__(self, program: Program) -> None:
        super().__init__(one_matmul(1, 1), "f32")
        one = self.tensors["embed.weight"]
        self.tensors = {w.name: replace(one, name=w.name, shape=w.shape) for w in program.weights.values()}
        self._zeros = open("/dev/zero", "rb")  # noqa: SIM115
        weakref.finalize(self, self._zeros.close)

    def locate(self, name: str) -> StoredRows:
        return StoredRows(self.tensors[name].type, self._zeros.fileno(), 0)


class Broken(Exception):
    """Raised by a test."""


def raise_broken(*_: int) -> None:
    raise Broken


@pytest.mark.parametrize("where", ["meanwhile", "progress"])
def test_a_failure_beside_loading_ends_it(where: str) -> None:
    program = one_matmul(100_000, 128)
    with pytest.raises(Broken):
        load(program, ZeroWeights(program), threads=3, **{where: raise_broken})


def test_an_interrupt_ends_a_long_load() -> None:
    """Progress is the place where signals are looked at: what it raises comes out, and no thread goes on."""
    program = one_matmul(600_000, 128)
    calls = []

    def interrupt(done: int, _total: int) -> None:
        calls.append(done)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(program, ZeroWeights(program), progress=interrupt)
    assert len(calls) == 2
    assert calls[1] < 4 * 128 * 600_000


def test_a_file_that_shrinks_before_it_is_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(llama_gguf())
    with open_checkpoint(path) as checkpoint:
        program = build_program(checkpoint.spec)
        types = {name: tensor.type for name, tensor in checkpoint.tensors.items()}
        kv = KVCacheSpec.of(checkpoint.spec, "f16")
        os.truncate(path, path.stat().st_size - 100)
        with pytest.raises(CheckpointError, match=r"tiny\.gguf shrank"):
            NATIVE.load(NATIVE.lower(program, types), checkpoint, kv, LoadOptions(4, LIMITS, threads=2))


def test_a_read_that_the_system_refuses_names_the_weight() -> None:
    program = one_matmul(16, 16)
    source = source_of(program, "f32")
    source.locate = lambda name: StoredRows(stored_type("f32"), 10**6, 0)  # type: ignore[method-assign]
    with pytest.raises(BackendError, match=r"embed\.weight can't be used: Bad file descriptor"):
        load(program, source)


def test_a_vector_is_never_a_block_type() -> None:
    program = one_matmul(32, 32, bias=True)
    source = RandomWeights(program, "f32")
    source.tensors = {**source.tensors, "w.bias": replace(source.tensors["w.bias"], type=stored_type("q8_0"))}
    with pytest.raises(BackendError, match="a vector must be stored as"):
        load(program, source)


def test_while_loading_little_more_is_resident_than_what_is_kept() -> None:
    """Source pages are not this process's, and staging is small."""
    code = """
import sys
sys.path[:0] = sys.argv[1:]
from native.test_loading import ZeroWeights, load, one_matmul
import kvwise.backends.native.program, numpy
def status(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))
program = one_matmul(200_000, 128)
source = ZeroWeights(program)
before = status("VmRSS")
loaded = load(program, source, threads=2)
weights = next(b.nbytes for b in loaded.buffers() if b.row == "weights")
print(status("VmHWM") - before - weights, weights)
"""
    tests = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code, str(tests), str(tests.parent / "src")],
        timeout=60, check=True, capture_output=True, text=True,
    )  # fmt: skip
    beyond, weights = map(int, done.stdout.split())
    assert weights > 100_000_000
    assert beyond < 6_000_000


# ---- conversion while loading


def rows_of_any_size(seed: int, blocks: int) -> NDArray[np.float32]:
    """Ordinary numbers, and blocks of zeros of both signs, of one number, of the smallest and of the largest."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((7, 32 * blocks)).astype(np.float32) * np.float32(10.0) ** rng.integers(-9, 5, (7, 1))
    values[1] = rng.choice(np.array([0.0, -0.0], np.float32), values[1].shape)
    values[2] = values[2, 0]
    values[3] = rng.choice(np.array([1e-45, -1e-45, 3e-40, -1e-38], np.float32), values[3].shape)
    values[4] = rng.choice(np.array([3e38, -3e38, 1.0], np.float32), values[4].shape)
    values[5] = rng.integers(-127, 128, values[5].shape)  # halves between codes
    values[6] = rng.integers(-16, 17, values[6].shape) / np.float32(2)
    return values


@pytest.mark.parametrize("kind", sorted(TENSOR_TYPES))
@given(seed=st.integers(0, 2**32), blocks=st.integers(1, 5))
def test_rows_are_rounded_as_the_reference_rounds_them(kind: str, seed: int, blocks: int) -> None:
    values = rows_of_any_size(seed, blocks * max(1, TENSOR_TYPES[kind].block_elements // 32))
    out = np.zeros((len(values), TENSOR_TYPES[kind].row_bytes(values.shape[1])), np.uint8)
    convertible = kind in QUANTIZERS and not TENSOR_TYPES[kind].is_float
    assert _native.kernels.round_rows(kind, values, out) == convertible
    if convertible:
        np.testing.assert_array_equal(out, quantize(values, TENSOR_TYPES[kind]))


@pytest.mark.parametrize("held", [name for name in QUANTIZERS if not TENSOR_TYPES[name].is_float])
@pytest.mark.parametrize("stored", FLOAT_TYPES)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_converted_matrix_is_the_one_that_was_stored_so(stored: str, held: str, threads: int) -> None:
    program = one_matmul(1000, 128 * 17, bias=True)
    source = source_of(program, stored)
    types = {name: tensor.type for name, tensor in source.tensors.items()} | {"w.weight": TENSOR_TYPES[held]}
    converted = ConvertedWeights(source, types)
    stored_so = RandomWeights(program, "f32")
    stored_so.tensors = {
        name: replace(source.tensors[name], type=t, raw=converted.read(name)) for name, t in types.items()
    }
    assert all(converted.tensors[name].nbytes == stored_so.tensors[name].nbytes for name in types)
    np.testing.assert_array_equal(
        outputs_of(load(program, converted, threads)), outputs_of(load(program, stored_so, threads))
    )


def test_numbers_that_are_not_finite_are_not_converted() -> None:
    program = one_matmul(40, 64)
    for bad in (np.inf, -np.inf, np.nan):
        source = source_of(program, "f16")
        raw = source.tensors["w.weight"].raw.copy()
        raw.view(np.float16)[39, 63] = bad
        source.tensors = {**source.tensors, "w.weight": replace(source.tensors["w.weight"], raw=raw)}
        load(program, source)
        types = {"embed.weight": stored_type("f32"), "w.weight": stored_type("q8_0")}
        with pytest.raises(CheckpointError, match=r"w\.weight holds numbers that are not finite"):
            load(program, ConvertedWeights(source, types))


def test_a_block_type_is_never_converted() -> None:
    program = one_matmul(40, 64)
    source = source_of(program, "q4_0")
    with pytest.raises(BackendError, match="can't be converted"):
        load(program, ConvertedWeights(source, {"embed.weight": stored_type("f32"), "w.weight": stored_type("q8_0")}))


# ---- what a cache of weights relies on

# Of `patterned` matrices, by layout version.
HELD = {
    1: {
        "f32": 0xEAD0C845C263AC5A,
        "f16": 0x4AB5C1E200F2B29B,
        "bf16": 0x337613E775F524D9,
        "q8_0": 0x07250A3F8DCD371D,
        "q4_0": 0x9E70CAAF20F60395,
        "q4_1": 0x8B2BEA4E8E79D3D6,
        "q5_0": 0x9F1FD1A4D3EB0AD1,
        "q5_1": 0x2972CA59B7EAE9BC,
        "q2_k": 0x8187FD7AD81731AC,
        "q3_k": 0x8138DBF3F3AFC231,
        "q4_k": 0xB2AB6B6A86873379,
        "q5_k": 0x98C8FC338E8755E8,
        "q6_k": 0x4B02D3DFEAF86198,
        "i8": 0x3C1181409D102CB7,
        "i4_64": 0x6BC85FD50D4B1E86,
        "i4_128": 0xDF349A56F018AD93,
    }
}


def patterned(kind: str) -> RandomWeights:
    """40 rows of 256 inputs whose bytes are the same everywhere."""
    program = one_matmul(40, 256)
    source = source_of(program, kind)
    tensor = source.tensors["w.weight"]
    raw = (np.arange(tensor.nbytes, dtype=np.uint32) * 2654435761 >> 24).astype(np.uint8).reshape(tensor.raw.shape)
    source.tensors = {**source.tensors, "w.weight": replace(tensor, raw=raw)}
    return source


@pytest.mark.parametrize("kind", KINDS)
def test_types_are_held_as_they_were_when_the_layout_got_its_version(kind: str) -> None:
    """Where this fails a layout has changed: raise weight_cache.LAYOUT_VERSION and record the new checksums here."""
    held = load(one_matmul(40, 256), patterned(kind), threads=2)._model.held_ranges()  # type: ignore[attr-defined]
    assert HELD[LAYOUT_VERSION][kind] == held[1][2]


def test_a_checksum_tells_any_changed_byte() -> None:
    """Every byte of small matrices, each changed to every other value by one of its bits."""
    program = one_matmul(16, 32)
    source = source_of(program, "f32")
    tensor = source.tensors["w.weight"]
    seen = set()
    for at in range(0, tensor.nbytes, 37):
        for bit in range(8):
            raw = tensor.raw.copy()
            raw.reshape(-1)[at] ^= 1 << bit
            source.tensors = {**source.tensors, "w.weight": replace(tensor, raw=raw)}
            seen.add(load(program, source)._model.held_ranges()[1][2])  # type: ignore[attr-defined]
    assert len(seen) == 8 * len(range(0, tensor.nbytes, 37))
