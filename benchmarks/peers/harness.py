"""Runs the entrants of a cell by turns and keeps the samples that others disturbed least.

Each entrant has a process of its own, stopped (SIGSTOP) while another is measured, so that nobody's waiting threads
cost anybody anything. A round takes one sample of each; a sample during which others used more of the machine than
`Effort.limit` is taken again, a few times in all. Knows the protocol; knows nothing of models or formats.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from .cells import MEMORY_TOKENS, START_TOKENS, Cell
from .contention import wait_until_quiet, watched

BENCHMARKS: Final = Path(__file__).resolve().parents[1]
WARM_TOKENS: Final = 2
MEMORY_DECODES: Final = 64


class PeerFailed(RuntimeError):
    """A peer could not do what the cell asks."""


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
    """repeats: samples kept; retries: more of them when disturbed; limit: disturbance that is let pass."""

    repeats: int = 5
    retries: int = 4
    limit: float = 0.04
    patience_s: float = 20.0


@dataclass(frozen=True)
class Seat:
    """How to start an entrant's process. shares_path: it imports what this process can, as kvwise's does."""

    label: str
    command: tuple[str, ...]
    model: Path
    options: dict[str, Any]
    threads: int
    shares_path: bool = False


@dataclass
class Series:
    """Of one entrant in one cell: all samples in order, or why there are none."""

    label: str
    samples: list[Sample] = field(default_factory=list)
    error: str | None = None
    ids: list[int] = field(default_factory=list)

    def kept(self, repeats: int) -> list[Sample]:
        """The least disturbed ones."""
        return sorted(self.samples, key=lambda sample: sample.disturbance)[:repeats]


class Process:
    """A peer's process. Stopped whenever it is not inside `call`."""

    def __init__(self, seat: Seat, log: IO[bytes]) -> None:
        own = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p] if seat.shares_path else []
        environment = {
            **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")},
            "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), *own]),
            "OMP_NUM_THREADS": str(seat.threads),
        }
        self.seat = seat
        self._pipe = subprocess.Popen(
            seat.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._pipe.pid

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Raises PeerFailed."""
        self._signal(signal.SIGCONT)
        try:
            return self.ask({"do": do, **arguments})
        finally:
            self._signal(signal.SIGSTOP)

    def ask(self, *commands: dict[str, Any]) -> dict[str, Any]:
        """Send all at once; the last answer."""
        assert self._pipe.stdin is not None
        assert self._pipe.stdout is not None
        answer: dict[str, Any] = {}
        try:
            self._pipe.stdin.write("".join(json.dumps(c) + "\n" for c in commands))
            self._pipe.stdin.flush()
            for _ in commands:
                line = self._pipe.stdout.readline()
                if not line:
                    raise PeerFailed(f"{self.seat.label} ended with code {self._pipe.wait()}")
                answer = json.loads(line)
                if "error" in answer:
                    raise PeerFailed(answer["error"])
        except BrokenPipeError:
            raise PeerFailed(f"{self.seat.label} ended with code {self._pipe.wait()}") from None
        return answer

    def load_command(self, max_context: int, max_batch: int) -> dict[str, Any]:
        seat = self.seat
        return {
            "do": "load",
            "model": str(seat.model),
            "threads": seat.threads,
            "max_context": max_context,
            "max_batch": max_batch,
            "options": seat.options,
        }

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._pipe.wait()
        for pipe in (self._pipe.stdin, self._pipe.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._pipe.poll() is None:
            os.killpg(self._pipe.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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

    def measure(self, cells: Sequence[Cell]) -> dict[Cell, list[Series]]:
        """Cells of prefill and decode that the same processes can serve."""
        spare = max((c.tokens for c in cells if c.kind == "decode"), default=1) * (
            self._effort.repeats + self._effort.retries + 1
        )
        max_context = max(c.context for c in cells) + spare + WARM_TOKENS + 1
        self._start(max_context, max(c.batch for c in cells))
        return {cell: self._measure_cell(cell) for cell in cells}

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
        series = {seat.label: Series(seat.label) for seat in self._seats}
        takers = {label: _Taker(process, cell, self._vocab) for label, process in self._processes.items()}
        effort = self._effort
        retries = dict.fromkeys(takers, effort.retries)
        for number in range(effort.repeats):
            for label, taker in takers.items():
                if label in self._failures:
                    continue
                try:
                    if number == 0:
                        taker.warm()
                    while True:
                        sample = taker.take(len(series[label].samples), effort)
                        series[label].samples.append(sample)
                        if sample.disturbance <= effort.limit or not retries[label]:
                            break
                        retries[label] -= 1
                except PeerFailed as failure:
                    self._fail(label, failure)
        for label, taker in takers.items():
            series[label].ids = taker.ids
            series[label].error = self._failures.get(label)
            if label not in self._failures:
                taker.finish()
        _say(f"  {cell.name}: " + ", ".join(_short(s, effort.repeats) for s in series.values()))
        return list(series.values())

    def _fail(self, label: str, failure: PeerFailed) -> None:
        _say(f"  {label} failed: {failure}")
        self._failures[label] = str(failure)
        self._processes[label].close()

    def _log(self, seat: Seat) -> IO[bytes]:
        self._logs.mkdir(parents=True, exist_ok=True)
        return (self._logs / f"{seat.label.replace(' ', '-')}.log").open("ab")

    def measure_start(self, cell: Cell, keep_memory: bool) -> list[Series]:
        """Fresh processes: seconds from nothing to the first token, or the most that was resident."""
        series = {seat.label: Series(seat.label) for seat in self._seats}
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
        _say(f"  {cell.name}: " + ", ".join(_short(s, self._effort.repeats) for s in series.values()))
        return list(series.values())

    def _cold_start(self, seat: Seat, number: int) -> Sample:
        wait_until_quiet(self._effort.limit, self._effort.patience_s)
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
    """Takes the samples of one cell from one process."""

    def __init__(self, process: Process, cell: Cell, vocab: int) -> None:
        self._process, self._cell, self._vocab = process, cell, vocab
        self._running = False
        self.ids: list[int] = []  # the first request's, of the first sample

    def warm(self) -> None:
        """The same work once, uncounted."""
        self._begin(-1)
        if self._cell.kind == "decode":
            self._process.call("advance", tokens=WARM_TOKENS)
        if self._cell.kind == "prefill" or self._cell.restarts:
            self.finish()

    def take(self, number: int, effort: Effort) -> Sample:
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
        self.ids = self.ids or answer["ids"]
        if self._cell.restarts:
            self.finish()
        return Sample(self._cell.batch * self._cell.tokens / answer["seconds"], seen.foreign, seen.stolen)

    def finish(self) -> None:
        if self._running:
            self._process.call("end")
            self._running = False

    def _begin(self, number: int) -> float:
        seed = 1000 * (number + 2)
        prompts = [prompt(self._vocab, self._cell.context, seed + i) for i in range(self._cell.batch)]
        self._running = True
        return float(self._process.call("begin", prompts=prompts)["seconds"])


def _read_once(model: Path) -> None:
    """Into the page cache."""
    for path in [model] if model.is_file() else sorted(p for p in model.iterdir() if p.is_file()):
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def _short(series: Series, repeats: int) -> str:
    values = sorted(s.value for s in series.kept(repeats))
    return f"{series.label} {values[len(values) // 2]:.4g}" if values else f"{series.label} –"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
