"""Synthetic programs that are run to measure a machine, and the clock around their steps. Keeps no figure.

Zeros serve as weights: no kernel's speed depends on values. A time is the median of a few repetitions: what the
machine does, not what it can do at its best. Where steps are slow, fewer repetitions tell as much.
"""

from __future__ import annotations

import codecs
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kvwise.backends.price.price import QUANTIZE
from kvwise.backends.protocol import Backend, LoadedProgram, LoadOptions
from kvwise.engine.engine import Engine
from kvwise.engine.executor import ProgramExecutor
from kvwise.program.builder import ProgramBuilder
from kvwise.program.cost import OpCost, cost_of
from kvwise.program.ir import Program, Quantize, Rows, Slot, SlotType
from kvwise.spec.dtypes import TENSOR_TYPES, TensorType
from kvwise.spec.kv import KV_TYPES, KVCacheSpec
from kvwise.spec.model import Activation, AttentionSpec, NormSpec
from kvwise.spec.request import Request, SamplingParams
from kvwise.spec.rope import RopeSpec
from kvwise.spec.shape import StepLimits, StepShape
from kvwise.spec.weights import StoredRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvwise.spec.batch import StepBatch

HIDDEN: Final = 1024
INTERMEDIATE: Final = 4096
MANY_ROWS: Final = 512
CONTEXT: Final = 2048
KV_HEADS: Final = 4
REPETITIONS: Final = 3
SHORT_S: Final = 0.003  # of repetitions of one step: below, a few more cost nothing
ENOUGH_S: Final = 0.15  # noise is small beside it
ROW_OPS: Final = 32
_VOCAB: Final = 16  # rows of the synthetic tables
_HEAD_DIM: Final = 64


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of a few repetitions, and how far the middle half is apart, over them: 0 where there was one."""

    seconds: float
    spread: float


def timing(run: Callable[[], object]) -> Timing:
    """Of `run`, a few times; the first is not counted where there is time for more."""
    first = _clocked(run)
    if first > ENOUGH_S:
        return Timing(first, 0.0)
    samples = [_clocked(run)]
    while sum(samples) < ENOUGH_S and (len(samples) < REPETITIONS or sum(samples) < SHORT_S):
        samples.append(_clocked(run))
    low, middle, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else (samples[0],) * 3
    return Timing(middle, (high - low) / middle)


def choose_token_timing(vocab: int) -> Timing:
    """Of choosing the most probable of `vocab` tokens."""
    import numpy as np

    from kvwise.engine.sampler import sample

    logits = np.zeros(vocab, np.float32)
    greedy = SamplingParams()
    return timing(lambda: sample(logits, greedy, 0, 0))


def _clocked(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


# Programs


def matmul_program(pairs: int, hidden: int = HIDDEN, intermediate: int = INTERMEDIATE) -> Program:
    b = ProgramBuilder()
    x = b.embed("x", "embed.weight", _VOCAB, hidden)
    for i in range(pairs):
        h = b.matmul(f"h{i}", x, f"layers.{i}.mlp.up.weight", intermediate)
        x = b.matmul(f"x{i}", h, f"layers.{i}.mlp.down.weight", hidden)
    return _finished(b, x)


def rows_program(kind: str) -> Program:
    """ROW_OPS ops of one kind on rows, one after the other."""
    b = ProgramBuilder()
    x = first = b.embed("x", "embed.weight", _VOCAB, HIDDEN)
    for i in range(0 if kind == QUANTIZE else ROW_OPS):
        name = f"x{i}"
        match kind:
            case "norm":
                x = b.rms_norm(name, x, "final_norm.weight", NormSpec(1e-6))
            case "glu":
                x = b.glu(name, x, first, Activation.SILU)
            case "add":
                x = b.add(name, x, first)
            case "rope":
                x = b.rope(name, x, RopeSpec(10000.0, _HEAD_DIM), _HEAD_DIM)
    program = _finished(b, x)
    return _with_quantizing(program, first) if kind == QUANTIZE else program


def _with_quantizing(program: Program, x: str) -> Program:
    """With ROW_OPS copies of `x` in q8 that nobody reads."""
    copies = [Quantize(out=f"{x}.{i}", x=x) for i in range(ROW_OPS)]
    slots = {op.out: Slot(op.out, Rows.TOKENS, program.slots[x].width, SlotType.Q8) for op in copies}
    return replace(program, ops=(program.ops[0], *copies, *program.ops[1:]), slots={**program.slots, **slots})


def attention_program(layers: int, queries_per_kv: int, head_dim: int) -> Program:
    heads = AttentionSpec(
        num_q_heads=KV_HEADS * queries_per_kv, num_kv_heads=KV_HEADS, head_dim=head_dim, scale=0.125, rope=None
    )
    b = ProgramBuilder()
    q = b.embed("q", "embed.weight", _VOCAB, heads.q_width)
    k = b.embed("k", "kv.weight", _VOCAB, heads.kv_width)
    for i in range(layers):
        q = b.attention(f"a{i}", q, k, k, heads)
    return _finished(b, q)


def _finished(b: ProgramBuilder, x: str) -> Program:
    """Ends in logits of chosen rows; without attention it gets the smallest one, because a pool must exist."""
    program = b.build(b.gather_rows("out", x))
    if program.kv_layers:
        return program
    tiny = AttentionSpec(num_q_heads=1, num_kv_heads=1, head_dim=16, scale=1.0, rope=None)
    t = b.embed("t", "tiny.weight", _VOCAB, tiny.q_width)
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

    def identity(self) -> None:
        return None

    def __enter__(self) -> _ZeroSource:
        self._zeros = open("/dev/zero", "rb")
        return self

    def __exit__(self, *_: object) -> None:
        self._zeros.close()


def _quantized(lowered: Program, activations: str) -> Program:
    """Every quantized slot as one of type `activations`: q8, or q8x2."""
    kind = SlotType(activations)
    ops = tuple(replace(op, twice=kind is SlotType.Q8X2) if isinstance(op, Quantize) else op for op in lowered.ops)
    outs = {op.out for op in ops if isinstance(op, Quantize)}
    slots = {name: replace(slot, type=kind) if name in outs else slot for name, slot in lowered.slots.items()}
    return replace(lowered, ops=ops, slots=slots)


class _Letters:
    """A decoder that does for each token what text takes at least: bytes, then characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def push(self, token_id: int) -> str:
        return self._decoder.decode(bytes((97 + token_id % 26,)))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class Bench:
    """A synthetic program, loaded; matrices of `weight_type`, everything else float32. A context manager."""

    def __init__(
        self,
        backend: Backend,
        program: Program,
        weight_type: TensorType,
        threads: int,
        *,
        activations: str = "",
        kv_type: str = "f16",
    ) -> None:
        types = {name: weight_type if name.startswith("layers.") else TENSOR_TYPES["f32"] for name in program.weights}
        self.kv = KVCacheSpec(program.kv_layers, KV_TYPES[kv_type])
        self.program = _quantized(backend.lower(program, types), activations) if activations else program
        self._weight_bytes = backend.weight_bytes(self.program, types)
        limits = StepLimits(MANY_ROWS, MANY_ROWS // self.kv.block_tokens, MANY_ROWS // self.kv.block_tokens, CONTEXT)
        self._options = LoadOptions(CONTEXT // self.kv.block_tokens, limits, threads)
        with _ZeroSource(self.program, types) as source:
            self._loaded: LoadedProgram = backend.load(self.program, source, self.kv, self._options)

    def cost(self, shape: StepShape) -> OpCost:
        return cost_of(self.program, shape, self.kv, self._weight_bytes.__getitem__).total

    def timing(self, num_tokens: int, context: int) -> Timing:
        """Of a step of `num_tokens` tokens that end at `context`."""
        batch = _batch(num_tokens, context, self._options.num_blocks)
        return timing(lambda: self._loaded.run(batch))

    def fill(self) -> None:
        """Write all K and V, so that later reads touch real memory. Each block is a request: little to attend to."""
        size, step = self.kv.block_tokens, self._options.limits.max_requests
        for first in range(0, self._options.num_blocks, step):
            self._loaded.run(_blocks_batch(range(first, first + step), size))

    def engine_overhead(self, requests: int) -> float:
        """Seconds that the engine's loop adds to a decode step of `requests`: the median step."""
        width = self.program.slots[self.program.output].width
        limits = replace(self._options.limits, max_requests=requests, max_logits_rows=requests)
        engine = Engine(
            ProgramExecutor(self._loaded),
            self.kv,
            self._options.num_blocks,
            limits,
            vocab=width,
            make_decoder=lambda _: _Letters(),
        )
        for i in range(requests):
            engine.add_request(Request(f"probe-{i}", (1, i % _VOCAB), SamplingParams(max_tokens=33, ignore_eos=True)))
        extra = []
        while engine.has_work:
            start = time.perf_counter()
            report = engine.step()
            extra.append(time.perf_counter() - start - report.measured_s)
        return statistics.median(extra)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._loaded.close()


def _blocks_batch(blocks: Sequence[int], block_tokens: int) -> StepBatch:
    """All tokens of each block, as the whole of a request."""
    import numpy as np

    from kvwise.spec.batch import StepBatch

    num_tokens = len(blocks) * block_tokens
    first = blocks[0] * block_tokens
    return StepBatch(
        token_ids=np.ones(num_tokens, np.int32),
        positions=np.tile(np.arange(block_tokens, dtype=np.int32), len(blocks)),
        slot_mapping=np.arange(first, first + num_tokens, dtype=np.int32),
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
