"""Runs the entrants of a cell by turns and keeps the samples that others disturbed least.

Each entrant has a process of its own, stopped (SIGSTOP) while another is measured, so that nobody's waiting threads
cost anybody anything. A round takes one sample of each; a sample during which others used more of the machine than
`Effort.limit` is taken again, a few times in all. Knows nothing of models or formats.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from .cells import MEMORY_TOKENS, START_TOKENS, Cell
from .contention import wait_until_quiet, watched
from .process import PeerFailed, Process, Seat

WARM_TOKENS: Final = 2
MEMORY_DECODES: Final = 64


@dataclass(frozen=True)
class Sample:
    """value: seconds, tokens/s or bytes. foreign, stolen: shares of the machine that others had meanwhile."""

    value: float
    foreign: float
    stolen: float

    @property
    def disturbance(self) -> float:
        return self.foreign + self.stolen


@dataclass(frozen=True)
class Effort:
    """repeats: samples kept; retries: more of them when disturbed; limit: disturbance that is let pass.

    A peer whose samples would take longer than cell_s together gives fewer of them, but slow_repeats.
    """

    repeats: int = 5
    retries: int = 4
    limit: float = 0.04
    patience_s: float = 20.0
    cell_s: float = 60.0
    slow_repeats: int = 3

    def repeats_of(self, sample_s: float, *, ours: bool) -> int:
        """Samples of an entrant of which one took `sample_s`. Ours always gives all."""
        if ours or sample_s * self.repeats <= self.cell_s:
            return self.repeats
        return min(self.repeats, max(self.slow_repeats, int(self.cell_s / sample_s)))


@dataclass
class Series:
    """Of one entrant in one cell: all samples in order, or why there are none; `wanted` of them count."""

    label: str
    wanted: int
    samples: list[Sample] = field(default_factory=list)
    error: str | None = None
    ids: list[int] = field(default_factory=list)

    def kept(self) -> list[Sample]:
        """The least disturbed ones."""
        return sorted(self.samples, key=lambda sample: sample.disturbance)[: self.wanted]


def prompt(vocab: int, tokens: int, seed: int) -> list[int]:
    """Any plain tokens, the same for everybody."""
    rng = random.Random(seed)
    return [rng.randrange(256, vocab - 256) for _ in range(tokens)]


class Round:
    """Entrants that alternate. A context manager: their processes live as long as it."""

    def __init__(self, seats: Sequence[Seat], vocab: int, effort: Effort, log_folder: Path) -> None:
        self.versions: dict[str, dict[str, str]] = {}
        self._seats, self._vocab, self._effort, self._logs = seats, vocab, effort, log_folder
        self._processes: dict[str, Process] = {}
        self._failures: dict[str, str] = {}

    def measure(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, list[Series]]]:
        """Cells of prefill and decode that the same processes can serve, one after the other."""
        spare = max((c.tokens for c in cells if c.kind == "decode"), default=1) * (
            self._effort.repeats + self._effort.retries + 1
        )
        max_context = max(c.context for c in cells) + spare + WARM_TOKENS + 1
        self._start(max_context, max(c.batch for c in cells))
        for cell in cells:
            yield cell, self._measure_cell(cell)

    def _start(self, max_context: int, max_batch: int) -> None:
        for seat in self._seats:
            process = Process(seat, self._log(seat))
            self._processes[seat.label] = process
            _say(f"  loading {seat.label}")
            try:
                command = process.load_command(max_context, max_batch)
                self.versions[seat.label] = process.call(**command)["versions"]
            except PeerFailed as failure:
                self._fail(seat.label, failure)

    def _measure_cell(self, cell: Cell) -> list[Series]:
        series = [Series(seat.label, self._effort.repeats) for seat in self._seats]
        takers = {
            s.label: _Taker(self._processes[s.label], cell, self._vocab, self._effort, s)
            for s in series
            if s.label not in self._failures
        }
        for number in range(self._effort.repeats):
            for label, taker in takers.items():
                if label in self._failures or number >= taker.series.wanted:
                    continue
                try:
                    taker.take_round(number)
                except PeerFailed as failure:
                    self._fail(label, failure)
        for label, taker in takers.items():
            if label not in self._failures:
                taker.finish()
        for s in series:
            s.error = self._failures.get(s.label)
        _say(f"  {cell.name}: " + ", ".join(map(_short, series)))
        return series

    def _fail(self, label: str, failure: PeerFailed) -> None:
        _say(f"  {label} failed: {failure}")
        self._failures[label] = str(failure)
        self._processes[label].close()

    def _log(self, seat: Seat) -> Path:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._logs / f"{seat.label.replace(' ', '-')}.log"

    def measure_start(self, cell: Cell, keep_memory: bool) -> list[Series]:
        """Fresh processes: seconds from nothing to the first token, or the most that was resident."""
        series = {seat.label: Series(seat.label, 1 if keep_memory else self._effort.repeats) for seat in self._seats}
        for seat in self._seats:
            _read_once(seat.model)
        for number in range(1 if keep_memory else self._effort.repeats + 1):  # the first run warms the file cache
            for seat in self._seats:
                if series[seat.label].error is not None:
                    continue
                try:
                    sample = self._peak(seat) if keep_memory else self._cold_start(seat, number)
                    if number or keep_memory:
                        series[seat.label].samples.append(sample)
                except PeerFailed as failure:
                    series[seat.label].error = str(failure)
        _say(f"  {cell.name}: " + ", ".join(map(_short, series.values())))
        return list(series.values())

    def _cold_start(self, seat: Seat, number: int) -> Sample:
        wait_until_quiet(self._effort.limit, self._effort.patience_s)
        _take_and_free_memory(3 * _file_bytes(seat.model))
        with ExitStack() as stack, watched() as seen:
            start = time.perf_counter()
            process = stack.enter_context(Process(seat, self._log(seat)))
            begin = {"do": "begin", "prompts": [prompt(self._vocab, START_TOKENS, number)]}
            process.ask(process.load_command(2 * START_TOKENS, 1), begin)
            seconds = time.perf_counter() - start
            seen.pid = process.pid
        return Sample(seconds, seen.foreign, seen.stolen)

    def _peak(self, seat: Seat) -> Sample:
        with Process(seat, self._log(seat)) as process:
            process.ask(process.load_command(MEMORY_TOKENS + 2 * MEMORY_DECODES, 1))
            process.ask({"do": "begin", "prompts": [prompt(self._vocab, MEMORY_TOKENS, 0)]})
            process.ask({"do": "advance", "tokens": MEMORY_DECODES})
            return Sample(process.ask({"do": "memory"})["peak_bytes"], 0.0, 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.close()


class _Taker:
    """Takes the samples of one cell from one process into a series."""

    def __init__(self, process: Process, cell: Cell, vocab: int, effort: Effort, series: Series) -> None:
        self._process, self._cell, self._vocab, self._effort = process, cell, vocab, effort
        self.series = series
        self._retries = effort.retries
        self._running = False

    def take_round(self, number: int) -> None:
        """One sample, and more while they are disturbed and there are retries left. The first warms up before."""
        if number == 0:
            self._warm()
        while True:
            sample = self._take(len(self.series.samples))
            self.series.samples.append(sample)
            if number == 0:
                seconds = self._cell.seconds_of(sample.value)
                self.series.wanted = self._effort.repeats_of(seconds, ours=self._process.seat.shares_path)
            if sample.disturbance <= self._effort.limit or not self._retries:
                return
            self._retries -= 1

    def finish(self) -> None:
        if self._running:
            self._process.call("end")
            self._running = False

    def _warm(self) -> None:
        """The same work once, uncounted."""
        self._begin(-1)
        if self._cell.kind == "decode":
            self._process.call("advance", tokens=WARM_TOKENS)
        if self._cell.kind == "prefill" or self._cell.restarts:
            self.finish()

    def _take(self, number: int) -> Sample:
        effort = self._effort
        if self._cell.kind == "prefill":
            wait_until_quiet(effort.limit, effort.patience_s)
            with watched(self._process.pid) as seen:
                seconds = self._begin(number)
            self.finish()
            return Sample(seconds, seen.foreign, seen.stolen)
        if not self._running:
            self._begin(number)
            self._process.call("advance", tokens=WARM_TOKENS)
        wait_until_quiet(effort.limit, effort.patience_s)
        with watched(self._process.pid) as seen:
            answer = self._process.call("advance", tokens=self._cell.tokens)
        self.series.ids = self.series.ids or answer["ids"]
        if self._cell.restarts:
            self.finish()
        return Sample(self._cell.batch * self._cell.tokens / answer["seconds"], seen.foreign, seen.stolen)

    def _begin(self, number: int) -> float:
        seed = 1000 * (number + 2)
        prompts = [prompt(self._vocab, self._cell.context, seed + i) for i in range(self._cell.batch)]
        self._running = True
        return float(self._process.call("begin", prompts=prompts)["seconds"])


# Each page of it, in a process that ends at once.
_TAKE: Final = """
import mmap, sys
taken = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
taken.madvise(mmap.MADV_HUGEPAGE)
for at in range(0, len(taken), 4096):
    taken[at] = 1
"""


def _take_and_free_memory(nbytes: int) -> None:
    """Have the machine's free memory at hand: whoever takes it next does not wait for a host to give it again.

    A virtual machine gives memory back to its host when it has been free for two seconds (free page reporting), and the
    first to take it again waits a millisecond and more for each MiB. That is nobody's loading.
    """
    subprocess.run([sys.executable, "-S", "-c", _TAKE, str(nbytes)], check=True)


def _files(model: Path) -> list[Path]:
    return [model] if model.is_file() else sorted(p for p in model.iterdir() if p.is_file())


def _file_bytes(model: Path) -> int:
    return sum(path.stat().st_size for path in _files(model))


def _read_once(model: Path) -> None:
    """Into the page cache."""
    for path in _files(model):
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def _short(series: Series) -> str:
    values = sorted(s.value for s in series.kept())
    return f"{series.label} {values[len(values) // 2]:.4g}" if values else f"{series.label} –"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
