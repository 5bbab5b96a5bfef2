"""Measures this machine with the backend's own ops on small synthetic programs, and keeps the result in the cache.

    streams   matmuls of a kind, by rows and working set; attention of a kind, by queries per KV head and working set
    rows      ops on rows, by kind and bytes
    fixed     an op, a pass over the threads, a step, a request, a logit

A few points of a kind take about a second and are measured when a model first needs them; `kvwise probe` measures all,
in several rounds: machines are not the same from second to second, and what the rounds differ by is told.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from kvwise.backends import BACKENDS
from kvwise.backends.native.backend import ISA_VARIABLE
from kvwise.backends.price.price import GLU, ROW_KINDS, queries_per_position
from kvwise.backends.protocol import Backend
from kvwise.checkpoint.bundled import cache_dir
from kvwise.errors import BackendError, NotMeasured
from kvwise.hardware.profile import (
    DeviceProfile,
    StreamFigures,
    interpolated,
    load_profile,
    profile_path,
    save_profile,
)
from kvwise.ledger.host import read_host_memory
from kvwise.planner.probe_bench import (
    CONTEXT,
    HIDDEN,
    INTERMEDIATE,
    MANY_ROWS,
    ROW_OPS,
    Bench,
    attention_program,
    logits_program,
    matmul_program,
    rows_program,
)
from kvwise.program.ir import Attention, Program
from kvwise.spec.dtypes import TENSOR_TYPES
from kvwise.spec.shape import StepShape
from kvwise.units import format_bytes

SOURCE: Final = "measured on this machine by kvwise's own kernels"
PASS_TYPE: Final = "q8_0"  # of the matrices that a pass and the engine's loop are measured with
LARGE_PAIRS: Final = 6  # of INTERMEDIATE x HIDDEN: more than caches hold
SMALL: Final = 512  # rows and columns of small matrices, as many bytes of them
SMALL_PAIRS: Final = LARGE_PAIRS * INTERMEDIATE * HIDDEN // (SMALL * SMALL)
SLOW_S: Final = 0.3  # a step that takes longer is the last of its kind: more rows take as many times longer
HIDES_READING: Final = 64  # rows: multiplying them takes so long that where weights come from does not show,
HIDES_BYTES: Final = 24 << 20  # so that larger working sets need no measuring
DISTURBED: Final = 0.1  # rounds that are further than this from their middle were not alone on the machine
ROWS_OF_OPS: Final = (4, 64, MANY_ROWS)  # of HIDDEN elements: on one thread, on all, beyond a core's cache
ENGINE_REQUESTS: Final = 8
MANY_QUERIES_PER_KV: Final = 4
_WIDE_VOCAB: Final = 2**15
_KV_LAYER_BYTES: Final = 4 << 20  # of CONTEXT tokens, at most

Report = Callable[[str, float], None]  # (what is measured now, the share that is done)
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
    (4 << 20, 16 << 20, 32 << 20, 96 << 20, 384 << 20),
    (1, 4, 96),
    (1, 2, 4, 8),
    (16, 64, 256),
    3,
)
NEEDED_BYTES: Final = 256 << 20  # at least; larger sets are measured where twice their bytes are free


def machine_profile(backend: str, threads: int, kinds: Collection[str], *, measure: bool = True) -> DeviceProfile:
    """This machine's profile for `backend`, from the cache, with what is missing measured now, at a few points.

    kinds: of streams, as a profile names them. Raises NotMeasured where there is too little memory to measure with, or
    no kernel for a kind; without `measure` where one is missing.
    """
    known = load_profile(machine_profile_path(backend, threads))
    missing = [kind for kind in kinds if known is None or kind not in known.streams]
    if known is not None and not missing:
        return known
    if not measure:
        raise NotMeasured("not measured on this machine", action="`kvwise probe` does")
    return probe_machine(backend, threads, missing, known=known, points=FEW).profile


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A profile, and how far rounds were from their middle, as a share, by what was measured."""

    profile: DeviceProfile
    spreads: Mapping[str, float]

    @property
    def disturbed(self) -> tuple[str, ...]:
        """What others on the machine seem to have disturbed."""
        return tuple(what for what, spread in self.spreads.items() if spread > DISTURBED)


def probe_machine(
    backend: str,
    threads: int,
    kinds: Collection[str],
    *,
    known: DeviceProfile | None = None,
    points: Points = ALL,
    report: Report | None = None,
) -> ProbeResult:
    """Measure `kinds` and, without a `known` profile to add them to, everything else; and keep the profile.

    Raises NotMeasured as machine_profile.
    """
    available = read_host_memory().available_bytes
    if available < NEEDED_BYTES:
        raise NotMeasured(f"not measured: that takes {format_bytes(NEEDED_BYTES)}, of {format_bytes(available)} free")
    points = points.within(available // 2)
    try:
        result = _probe(BACKENDS[backend], threads, kinds, known, points, report)
    except (BackendError, MemoryError) as problem:
        raise NotMeasured(f"not measured: {problem}") from None
    with suppress(OSError):  # a cache that can't be written costs the next run a second, nothing else
        save_profile(machine_profile_path(backend, threads), result.profile)
    return result


def machine_profile_path(backend: str, threads: int) -> Path:
    """Where this machine's profile is kept."""
    return profile_path(cache_dir(), f"{backend}-{_machine_key()}", threads)


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


def _probe(
    backend: Backend,
    threads: int,
    kinds: Collection[str],
    known: DeviceProfile | None,
    points: Points,
    report: Report | None,
) -> ProbeResult:
    samples = _Samples(backend, threads, points)
    tasks: list[tuple[str, Callable[[], None]]] = []
    if known is None:
        tasks += [("ops on rows", samples.rows), ("the engine", samples.engine), ("passes", samples.passes)]
    tasks += [(kind, partial(samples.stream, kind)) for kind in kinds]
    total = points.rounds * len(tasks)
    for done in range(total):
        what, task = tasks[done % len(tasks)]
        if report is not None:
            report(what, done / total)
        task()
    profile = known or samples.fixed()
    streams = {**profile.streams, **{kind: samples.figures(kind) for kind in kinds}}
    spreads = samples.spreads()
    spread = statistics.median(spreads.values()) if spreads else 0.0
    thorough = points.rounds > 1 or profile.thorough
    return ProbeResult(
        replace(profile, streams=streams, spread=max(profile.spread, spread), thorough=thorough), spreads
    )


@dataclass(slots=True)
class _Samples:
    """Seconds by what was measured, one for each round and, in `apart`, how far its repetitions were apart."""

    backend: Backend
    threads: int
    points: Points
    seconds: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    apart: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))

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
        for what, width, requests in (
            ("step", HIDDEN, 1), ("requests", HIDDEN, ENGINE_REQUESTS), ("logits", _WIDE_VOCAB, 1),
        ):  # fmt: skip
            with self._bench(logits_program(LARGE_PAIRS, width), PASS_TYPE, activations="q8") as bench:
                self.seconds[what, requests, width].append(bench.engine_overhead(requests))

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
        moved = cost.kv_read_bytes + cost.kv_write_bytes
        self._clock(bench, (kind, rows, moved), queries, CONTEXT, 1 / moved)

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

    def fixed(self) -> DeviceProfile:
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
        step_s = middle["step", 1, HIDDEN]
        requests_s = middle["requests", ENGINE_REQUESTS, HIDDEN] - step_s
        logits_s = middle["logits", 1, _WIDE_VOCAB] - step_s
        return DeviceProfile(
            device=_cpu_facts().get("model name", platform.machine()),
            threads=self.threads,
            source=SOURCE,
            rows=rows,
            op_seconds=op_s,
            pass_seconds=max(passes_s / (2 * SMALL_PAIRS - 2 * LARGE_PAIRS) - 2 * op_s, 1e-9),
            step_seconds=step_s,
            request_seconds=max(requests_s / (ENGINE_REQUESTS - 1), 1e-9),
            logit_seconds=max(logits_s / (_WIDE_VOCAB - HIDDEN), 1e-14),
        )

    def figures(self, kind: str) -> StreamFigures:
        """What was disturbed was slow: fewer rows of a smaller set never take longer per byte than more of a larger."""
        found: dict[float, list[tuple[float, float]]] = defaultdict(list)
        for (what, rows, size), values in self.seconds.items():
            if what == kind:
                found[rows].append((size, statistics.median(values)))
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
