"""What a probe measures of a machine, in rounds, and the figures of a profile that follow from it.

Figures come from the rounds' medians. Disturbances only make a measurement slower, yet the fastest round is no better
guess: the machine's speed itself comes and goes, and a run meets the middle of it. What is fixed (ops, passes) is
taken out of a stream's seconds, because a price adds it again.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import field, replace
from typing import Final

from kvwise.backends.price.price import GLU, ROW_KINDS, queries_per_position
from kvwise.backends.protocol import Backend
from kvwise.frozen import dataclass
from kvwise.hardware.profile import DeviceProfile, StreamFigures, interpolated
from kvwise.planner.probe_bench import (
    CONTEXT,
    HIDDEN,
    INTERMEDIATE,
    MANY_ROWS,
    ROW_OPS,
    Bench,
    attention_program,
    choose_token_timing,
    matmul_program,
    rows_program,
)
from kvwise.program.ir import Attention, Program
from kvwise.spec.dtypes import TENSOR_TYPES
from kvwise.spec.shape import StepShape

SOURCE: Final = "measured on this machine by kvwise's own kernels"
PASS_TYPE: Final = "q8_0"  # of the matrices that a pass and the engine's loop are measured with
LARGE_PAIRS: Final = 6  # of INTERMEDIATE x HIDDEN: more than caches hold
SMALL: Final = 512  # rows and columns of small matrices, as many bytes of them
SMALL_PAIRS: Final = LARGE_PAIRS * INTERMEDIATE * HIDDEN // (SMALL * SMALL)
SLOW_S: Final = 0.3  # a step that takes longer is the last of its kind: more rows take as many times longer
HIDES_READING: Final = 64  # rows: multiplying them takes so long that where weights come from does not show,
HIDES_BYTES: Final = 24 << 20  # so that larger working sets need no measuring
ROWS_OF_OPS: Final = (4, 64, MANY_ROWS)  # of HIDDEN elements: on one thread, on all, beyond a core's cache
ENGINE_REQUESTS: Final = 8
MANY_QUERIES_PER_KV: Final = 4
_WIDE_VOCAB: Final = 2**17
_KV_LAYER_BYTES: Final = 4 << 20  # of CONTEXT tokens, at most

Key = tuple[str, float, float]  # what, rows, and bytes: of the working set or of an op


@dataclass(frozen=True, slots=True)
class Points:
    """Where a stream is measured, and how often. working_sets: bytes; in a core's cache, in a shared one, at its edge,
    in memory. kv_layers: of CONTEXT tokens, read again and again; queries: tokens of one request, at
    MANY_QUERIES_PER_KV heads."""

    rows: tuple[int, ...]
    working_sets: tuple[int, ...]
    kv_layers: tuple[int, ...]
    queries_per_kv: tuple[int, ...]
    queries: tuple[int, ...]
    rounds: int

    def within(self, limit: int) -> Points:
        """Those whose working sets are of at most `limit` bytes, and the smallest."""
        sets = [size for size in self.working_sets if size <= limit] or self.working_sets[:1]
        layers = [n for n in self.kv_layers if n * _KV_LAYER_BYTES <= limit] or self.kv_layers[:1]
        return replace(self, working_sets=tuple(sets), kv_layers=tuple(layers))


FEW: Final = Points((1, 8, 64), (16 << 20, 256 << 20), (4, 64), (1, 4), (64,), 1)
ALL: Final = Points(
    (1, 2, 4, 8, 16, 32, 64, 256),
    (4 << 20, 16 << 20, 32 << 20, 96 << 20, 256 << 20),
    (1, 4, 96),
    (1, 2, 4, 8),
    (16, 64, 256),
    3,
)


@dataclass(slots=True)
class Samples:
    """Seconds by what was measured, one for each round and, in `apart`, how far its repetitions were apart.

    Of streams, by byte; passes_of: how many of a step's passes over the threads are in them, by byte, too.
    """

    backend: Backend
    threads: int
    points: Points
    seconds: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    apart: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    passes_of: dict[Key, float] = field(default_factory=dict)

    # Measuring

    def stream(self, kind: str) -> None:
        if kind.startswith("kv "):
            self._attention(kind)
        else:
            self._matmuls(kind)

    def rows(self) -> None:
        for kind in sorted({*ROW_KINDS.values(), GLU}):
            with self._bench(rows_program(kind)) as bench:
                for n in (1, *ROWS_OF_OPS):
                    moved = bench.cost(StepShape.prefill(n)).activation_bytes / ROW_OPS
                    self._clock(bench, (kind, n, moved), n, n, 1 / ROW_OPS)

    def engine(self) -> None:
        with self._bench(matmul_program(LARGE_PAIRS), PASS_TYPE, activations="q8") as bench:
            for requests in (1, ENGINE_REQUESTS):
                self.seconds["engine", requests, 0].append(bench.engine_overhead(requests))
        choosing = choose_token_timing(_WIDE_VOCAB)
        self.seconds["logits", 1, _WIDE_VOCAB].append(choosing.seconds)
        self.apart["logits", 1, _WIDE_VOCAB].append(choosing.spread)

    def passes(self) -> None:
        """As many bytes from memory in small matrices and in large ones, one program after the other: idle threads
        spin for a while, and would disturb the other program's."""
        for what, pairs, hidden, inner in (
            ("passes", SMALL_PAIRS, SMALL, SMALL), ("bytes", LARGE_PAIRS, HIDDEN, INTERMEDIATE)
        ):  # fmt: skip
            with self._bench(matmul_program(pairs, hidden, inner), PASS_TYPE, activations="q8") as bench:
                self._clock(bench, (what, 2 * pairs, 0), 1, 1, 1.0)

    def _matmuls(self, kind: str) -> None:
        name, _, activations = kind.partition("*")
        pair_bytes = 2 * INTERMEDIATE * TENSOR_TYPES[name].row_bytes(HIDDEN)
        slow = math.inf
        for pairs in sorted({max(1, round(size / pair_bytes)) for size in self.points.working_sets}):
            with self._bench(matmul_program(pairs), name, activations=activations) as bench:
                read = bench.cost(StepShape.prefill(1)).weight_bytes
                for rows in self.points.rows:
                    if rows >= slow or (rows >= HIDES_READING and read > HIDES_BYTES):
                        break
                    self.passes_of[kind, rows, read] = 2 * pairs / read
                    seconds = self._clock(bench, (kind, rows, read), rows, rows, 1 / read)
                    slow = rows if seconds > SLOW_S and rows > 1 else slow

    def _attention(self, kind: str) -> None:
        _, kv_type, _, width = kind.split()
        for layers in self.points.kv_layers:
            for per_kv in self.points.queries_per_kv:
                many = self.points.queries
                if layers != self.points.kv_layers[0] or per_kv != MANY_QUERIES_PER_KV:
                    many = ()
                program = attention_program(layers, per_kv, int(width))
                with self._bench(program, kv_type=kv_type) as bench:
                    bench.fill()
                    for queries in (1, *many):
                        self._attend(bench, kind, queries)

    def _attend(self, bench: Bench, kind: str, queries: int) -> None:
        cost = bench.cost(StepShape((queries,), (CONTEXT,), 1))
        op = next(op for op in bench.program.ops if isinstance(op, Attention))
        rows = round(queries_per_position(op, cost, bench.kv))
        read = cost.kv_read_bytes
        self.passes_of[kind, rows, read] = len(bench.kv.layers) / read
        self._clock(bench, (kind, rows, read), queries, CONTEXT, 1 / read)

    def _clock(self, bench: Bench, key: Key, num_tokens: int, context: int, share: float) -> float:
        clocked = bench.timing(num_tokens, context)
        self.seconds[key].append(clocked.seconds * share)
        self.apart[key].append(clocked.spread)
        return clocked.seconds

    def _bench(
        self, program: Program, weight_type: str = "f32", *, activations: str = "", kv_type: str = "f16"
    ) -> Bench:
        kind = TENSOR_TYPES[weight_type]
        return Bench(self.backend, program, kind, self.threads, activations=activations, kv_type=kv_type)

    # What follows from it

    def fixed(self, device: str) -> DeviceProfile:
        """Everything but streams."""
        middle = {key: statistics.median(values) for key, values in self.seconds.items()}
        kinds = sorted({*ROW_KINDS.values(), GLU})
        alone = {kind: next(s for (what, n, _), s in middle.items() if what == kind and n == 1) for kind in kinds}
        rows = {
            kind: tuple(
                (moved, max(seconds - alone[kind], 1e-12))
                for (what, n, moved), seconds in sorted(middle.items())
                if what == kind and n > 1
            )
            for kind in kinds
        }
        op_s = statistics.median(alone.values())
        passes_s = middle["passes", 2 * SMALL_PAIRS, 0] - middle["bytes", 2 * LARGE_PAIRS, 0]
        step_s = middle["engine", 1, 0]
        requests_s = middle["engine", ENGINE_REQUESTS, 0] - step_s
        return DeviceProfile(
            device=device,
            threads=self.threads,
            source=SOURCE,
            rows=rows,
            op_seconds=op_s,
            pass_seconds=max(passes_s / (2 * SMALL_PAIRS - 2 * LARGE_PAIRS) - 2 * op_s, 1e-9),
            step_seconds=step_s,
            request_seconds=max(requests_s / (ENGINE_REQUESTS - 1), 1e-9),
            logit_seconds=middle["logits", 1, _WIDE_VOCAB] / _WIDE_VOCAB,
        )

    def figures(self, kind: str, fixed: DeviceProfile) -> StreamFigures:
        """What was disturbed was slow: fewer rows of a smaller set never take longer per byte than more of a larger."""
        pass_s = fixed.figure("pass_seconds") + 2 * fixed.figure("op_seconds")
        found: dict[float, list[tuple[float, float]]] = defaultdict(list)
        for key, values in self.seconds.items():
            what, rows, size = key
            if what == kind:
                seconds = statistics.median(values)
                found[rows].append((size, max(seconds / 2, seconds - pass_s * self.passes_of.get(key, 0.0))))
        by_rows: list[tuple[float, tuple[tuple[float, float], ...]]] = []
        above: tuple[tuple[float, float], ...] = ()
        for rows in sorted(found, reverse=True):
            least, points = math.inf, []
            for size, seconds in sorted(found[rows], reverse=True):
                least = min(least, seconds, interpolated(above, size) if above else math.inf)
                points.append((size, least))
            above = tuple(reversed(points))
            by_rows.append((rows, above))
        return StreamFigures(tuple(reversed(by_rows)))

    def spreads(self) -> dict[str, float]:
        """By what was measured, at its middle point: half of what rounds are apart, or runs in the only one."""
        by_what: dict[str, list[float]] = defaultdict(list)
        for key, values in self.seconds.items():
            rounds = (max(values) - min(values)) / 2 / statistics.median(values)
            by_what[key[0]].append(rounds if len(values) > 1 else max(self.apart.get(key, [0.0])) / 2)
        return {what: statistics.median(shares) for what, shares in by_what.items()}
