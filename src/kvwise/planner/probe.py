"""Measures this machine with the backend's own ops on small synthetic programs, and keeps the result in the cache.

Zeros serve as weights: no kernel's speed depends on values. Each figure is the median of a few repetitions: what
the machine does, not what it can do at its best. A few kinds take about a second; kinds of matmul are measured when
a model first needs them. Where steps are slow, fewer rows and repetitions tell as much.
"""

from __future__ import annotations

import hashlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvwise.backends import BACKENDS
from kvwise.backends.native.backend import ISA_VARIABLE
from kvwise.backends.protocol import Backend, LoadedProgram, LoadOptions
from kvwise.checkpoint.bundled import cache_dir
from kvwise.engine.engine import Engine
from kvwise.engine.executor import ProgramExecutor
from kvwise.errors import BackendError, NotMeasured
from kvwise.hardware.profile import DeviceProfile, MatmulFigures, load_profile, profile_path, save_profile
from kvwise.ledger.host import read_host_memory
from kvwise.program.builder import ProgramBuilder
from kvwise.program.cost import OpCost, cost_of
from kvwise.program.ir import Attention, Program
from kvwise.spec.dtypes import TENSOR_TYPES, TensorType
from kvwise.spec.kv import KV_TYPES, KVCacheSpec
from kvwise.spec.model import Activation, AttentionSpec, NormSpec
from kvwise.spec.request import Request, SamplingParams
from kvwise.spec.shape import StepLimits, StepShape
from kvwise.spec.weights import StoredRows
from kvwise.units import format_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvwise.spec.batch import StepBatch

HIDDEN: Final = 1024
INTERMEDIATE: Final = 4096
MANY_ROWS: Final = 256
CONTEXT: Final = 2048
FEW_ROWS: Final = 16
REPETITIONS: Final = 5
PASS_KIND: Final = "q8_0*q8"  # the cost of a pass is what this kind's small matrices take longer than its large ones
SLOW_S: Final = 0.05  # a step that takes longer is measured by itself: noise is small beside it
# In a core's cache, in a shared cache, at its edge, in memory: the caches of the machines that we know lie between.
WORKING_SETS: Final = (4 << 20, 16 << 20, 48 << 20, 160 << 20)
NEEDED_BYTES: Final = 2 * WORKING_SETS[-1]  # the weights, and as much again for everything beside them


def machine_profile(backend: str, threads: int, kinds: Collection[str]) -> DeviceProfile:
    """This machine's profile for `backend`, from the cache, with what is missing measured now.

    Raises NotMeasured where there is too little memory to measure with.
    """
    path = profile_path(cache_dir(), f"{backend}-{_machine_key()}", threads)
    known = load_profile(path)
    missing = [kind for kind in kinds if known is None or kind not in known.matmuls]
    if known is not None and not missing:
        return known
    available = read_host_memory().available_bytes
    if available < NEEDED_BYTES:
        raise NotMeasured(f"not measured: that takes {format_bytes(NEEDED_BYTES)}, of {format_bytes(available)} free")
    try:
        profile = _probe(BACKENDS[backend], threads, missing, known)
    except (BackendError, MemoryError) as problem:
        raise NotMeasured(f"not measured: {problem}") from None
    with suppress(OSError):  # a cache that can't be written costs the next run a second, nothing else
        save_profile(path, profile)
    return profile


def _cpu_facts() -> dict[str, str]:
    """Facts of the first processor, by their names in /proc/cpuinfo; none where there is no such file."""
    try:
        first = Path("/proc/cpuinfo").read_text("utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _machine_key() -> str:
    """The same kind of processor with the same instruction sets, those chosen by hand included, gives the same key."""
    facts = _cpu_facts()
    parts = [platform.machine(), *(facts.get(k, "") for k in ("model name", "flags", "Features", "CPU part"))]
    parts += [chosen] if (chosen := os.environ.get(ISA_VARIABLE, "").strip().lower()) else []
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _probe(backend: Backend, threads: int, kinds: Collection[str], known: DeviceProfile | None) -> DeviceProfile:
    profile = known or _probe_fixed(backend, threads)
    measured = {kind: _probe_matmuls(backend, threads, kind) for kind in kinds}
    return replace(profile, matmuls={**profile.matmuls, **measured})


def _probe_matmuls(backend: Backend, threads: int, kind: str) -> MatmulFigures:
    name, _, q8 = kind.partition("*")
    weight_type = TENSOR_TYPES[name]
    pair_bytes = 2 * INTERMEDIATE * weight_type.row_bytes(HIDDEN)
    points = []
    flops = 0.0
    for pairs in sorted({max(1, round(size / pair_bytes)) for size in WORKING_SETS}):
        with _Bench(backend, _matmul_program(pairs), weight_type, threads, q8=bool(q8)) as bench:
            cost = bench.cost(StepShape.prefill(1))
            points.append((cost.weight_bytes, cost.weight_bytes / bench.seconds(1, 1)))
            flops = flops or bench.flops_per_second(MANY_ROWS)
    return MatmulFigures(tuple(points), flops)


def _probe_fixed(backend: Backend, threads: int) -> DeviceProfile:
    """Everything but matmuls."""
    f32 = TENSOR_TYPES["f32"]
    with _Bench(backend, _elementwise_program(), f32, threads) as bench:
        op_seconds = bench.seconds(1, 1) / len(bench.program.ops)
        cost = bench.cost(StepShape.prefill(MANY_ROWS))
        elementwise = cost.activation_bytes / bench.seconds(MANY_ROWS, MANY_ROWS)
        step_seconds = bench.engine_overhead()
    program = _attention_program()
    layers = sum(isinstance(op, Attention) for op in program.ops)
    with _Bench(backend, program, f32, threads) as bench:
        bench.fill()
        kv_bytes = bench.cost(StepShape.decode(CONTEXT)).kv_read_bytes
        one = max(bench.seconds(1, CONTEXT) - layers * op_seconds, 1e-9)
        attention_flops = bench.flops_per_second(CONTEXT)
    matmul = _probe_matmuls(backend, threads, PASS_KIND)
    return DeviceProfile(
        device=_cpu_facts().get("model name", platform.machine()),
        threads=threads,
        source="measured on this machine by kvwise's own kernels",
        attention_bandwidth=kv_bytes / one,
        attention_flops=attention_flops,
        elementwise_bandwidth=elementwise,
        op_seconds=op_seconds,
        step_seconds=step_seconds,
        matmuls={PASS_KIND: matmul},
        pass_seconds=_probe_pass(backend, threads, matmul, op_seconds),
    )


def _probe_pass(backend: Backend, threads: int, matmul: MatmulFigures, op_seconds: float) -> float:
    """What it costs that the threads begin and end a matmul: small matrices from memory, less what large ones take."""
    weight_type = TENSOR_TYPES[PASS_KIND.partition("*")[0]]
    pairs = WORKING_SETS[-1] // (2 * HIDDEN * weight_type.row_bytes(HIDDEN))
    with _Bench(backend, _matmul_program(pairs, HIDDEN), weight_type, threads, q8=True) as bench:
        read_bytes = bench.cost(StepShape.prefill(1)).weight_bytes
        spent = bench.seconds(1, 1) - read_bytes / matmul.bandwidth(read_bytes) - op_seconds * len(bench.program.ops)
    return max(spent / (2 * pairs), 1e-9)


# Synthetic programs


def _matmul_program(pairs: int, intermediate: int = INTERMEDIATE) -> Program:
    b = ProgramBuilder()
    x = b.embed("x", "embed.weight", 16, HIDDEN)
    for i in range(pairs):
        h = b.matmul(f"h{i}", x, f"layers.{i}.mlp.up.weight", intermediate)
        x = b.matmul(f"x{i}", h, f"layers.{i}.mlp.down.weight", HIDDEN)
    return _finished(b, x)


def _elementwise_program() -> Program:
    b = ProgramBuilder()
    x = b.embed("x", "embed.weight", 16, HIDDEN)
    for i in range(32):
        h = b.rms_norm(f"n{i}", x, "final_norm.weight", NormSpec(1e-6))
        h = b.glu(f"g{i}", h, x, Activation.SILU)
        x = b.add(f"x{i}", x, h)
    return _finished(b, x)


def _attention_program() -> Program:
    heads = AttentionSpec(num_q_heads=16, num_kv_heads=4, head_dim=64, scale=0.125, rope=None)
    b = ProgramBuilder()
    q = b.embed("q", "embed.weight", 16, heads.q_width)
    k = b.embed("k", "kv.weight", 16, heads.kv_width)
    for i in range(6):
        q = b.attention(f"a{i}", q, k, k, heads)
    return _finished(b, q)


def _finished(b: ProgramBuilder, x: str) -> Program:
    """Ends in logits of one row; a program without attention gets the smallest one, because a pool must exist."""
    program = b.build(b.gather_rows("out", x))
    if program.kv_layers:
        return program
    tiny = AttentionSpec(num_q_heads=1, num_kv_heads=1, head_dim=16, scale=1.0, rope=None)
    t = b.embed("t", "tiny.weight", 16, tiny.q_width)
    b.attention("t_out", t, t, t, tiny)
    return b.build("out")


@dataclass(frozen=True, slots=True)
class _Zeros:
    """A weight of zeros, and its own source."""

    name: str
    shape: tuple[int, ...]
    type: TensorType

    @property
    def nbytes(self) -> int:
        rows = self.shape[0] if len(self.shape) > 1 else 1
        return rows * self.type.row_bytes(self.shape[-1])


class _ZeroSource:
    """Zeros without end, as a file. A context manager."""

    def __init__(self, program: Program, types: dict[str, TensorType]) -> None:
        self.tensors = {w.name: _Zeros(w.name, w.shape, types[w.name]) for w in program.weights.values()}

    def read(self, name: str) -> NDArray[np.uint8]:
        import numpy as np

        tensor = self.tensors[name]
        rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
        return np.zeros((rows, tensor.nbytes // rows), np.uint8)

    def locate(self, name: str) -> StoredRows:
        return StoredRows(self.tensors[name].type, self._zeros.fileno(), 0)

    def __enter__(self) -> _ZeroSource:
        self._zeros = open("/dev/zero", "rb")
        return self

    def __exit__(self, *_: object) -> None:
        self._zeros.close()


class _Bench:
    """A synthetic program, loaded; matrices of `weight_type`, everything else float32. A context manager."""

    def __init__(
        self, backend: Backend, program: Program, weight_type: TensorType, threads: int, *, q8: bool = False
    ) -> None:
        types = {name: weight_type if name.startswith("layers.") else TENSOR_TYPES["f32"] for name in program.weights}
        self.kv = KVCacheSpec(program.kv_layers, KV_TYPES["f16"])
        self.program = backend.lower(program, types) if q8 else program
        self._weight_bytes = backend.weight_bytes(self.program, types)
        limits = StepLimits(MANY_ROWS, 1, MANY_ROWS // self.kv.block_tokens, CONTEXT)
        self._options = LoadOptions(CONTEXT // self.kv.block_tokens, limits, threads)
        with _ZeroSource(self.program, types) as source:
            self._loaded: LoadedProgram = backend.load(self.program, source, self.kv, self._options)

    def cost(self, shape: StepShape) -> OpCost:
        return cost_of(self.program, shape, self.kv, self._weight_bytes.__getitem__).total

    def seconds(self, num_tokens: int, context: int) -> float:
        """The median of a few steps of `num_tokens` tokens that end at `context`."""
        batch = _batch(num_tokens, context, self._options.num_blocks)
        first = _timed(lambda: self._loaded.run(batch))
        if first > SLOW_S:
            return first
        return statistics.median(_timed(lambda: self._loaded.run(batch)) for _ in range(REPETITIONS))

    def flops_per_second(self, context: int) -> float:
        """FLOP/s of a step of many rows that end at `context`."""
        rows, seconds = FEW_ROWS, self.seconds(FEW_ROWS, context)
        if seconds < SLOW_S:
            rows, seconds = MANY_ROWS, self.seconds(MANY_ROWS, context)
        return self.cost(StepShape((rows,), (context,), 1)).flops / seconds

    def fill(self) -> None:
        """Write all K and V, so that later reads touch real memory. Each block is a request: little to attend to."""
        size, step = self.kv.block_tokens, self._options.limits.max_requests
        for first in range(0, self._options.num_blocks, step):
            self._loaded.run(_blocks_batch(range(first, first + step), size))

    def engine_overhead(self) -> float:
        """Seconds that the engine's loop adds to a decode step of a small program: the median step."""
        limits = replace(self._options.limits, max_requests=1)
        engine = Engine(ProgramExecutor(self._loaded), self.kv, self._options.num_blocks, limits, vocab=16)
        engine.add_request(Request("probe", (1,), SamplingParams(max_tokens=33)))
        extra = []
        while engine.has_work:
            start = time.perf_counter()
            report = engine.step()
            extra.append(time.perf_counter() - start - report.measured_s)
        return sorted(extra)[len(extra) // 2]

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._loaded.close()


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _blocks_batch(blocks: range, block_tokens: int) -> StepBatch:
    """All tokens of each block, as the whole of a request."""
    import numpy as np

    from kvwise.spec.batch import StepBatch

    num_tokens = len(blocks) * block_tokens
    return StepBatch(
        token_ids=np.ones(num_tokens, np.int32),
        positions=np.tile(np.arange(block_tokens, dtype=np.int32), len(blocks)),
        slot_mapping=np.arange(blocks.start * block_tokens, blocks.stop * block_tokens, dtype=np.int32),
        query_starts=np.arange(0, num_tokens + 1, block_tokens, dtype=np.int32),
        context_lens=np.full(len(blocks), block_tokens, np.int32),
        block_tables=np.array(blocks, np.int32)[:, None],
        logits_rows=np.array([num_tokens - 1], np.int32),
        block_copies=np.zeros((0, 2), np.int32),
    )


def _batch(num_tokens: int, context: int, num_blocks: int) -> StepBatch:
    """Tokens [context - num_tokens, context) of one request whose blocks are 0, 1, 2, ..."""
    import numpy as np

    from kvwise.spec.batch import StepBatch

    positions = np.arange(context - num_tokens, context, dtype=np.int32)
    return StepBatch(
        token_ids=np.ones(num_tokens, np.int32),
        positions=positions,
        slot_mapping=positions,
        query_starts=np.array([0, num_tokens], np.int32),
        context_lens=np.array([context], np.int32),
        block_tables=np.arange(num_blocks, dtype=np.int32)[None],
        logits_rows=np.array([num_tokens - 1], np.int32),
        block_copies=np.zeros((0, 2), np.int32),
    )
