"""A peer's process: started, spoken to by the protocol of server.py, stopped whenever it is not asked anything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

BENCHMARKS: Final = Path(__file__).resolve().parents[1]
# Whoever is run from a source tree keeps its compiled modules, as what is installed has them.
_NOT_PASSED_ON: Final = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")


class PeerFailed(RuntimeError):
    """A peer could not do what the cell asks."""


@dataclass(frozen=True)
class Seat:
    """How to start an entrant's process. shares_path: it imports what this process can, as kvwise's does."""

    label: str
    command: tuple[str, ...]
    model: Path
    options: dict[str, Any]
    threads: int
    shares_path: bool = False


class Process:
    """A peer's process. Stopped whenever it is not inside `call`. What it prints is added to `log`."""

    def __init__(self, seat: Seat, log: Path) -> None:
        own = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p] if seat.shares_path else []
        environment = {
            **{name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON},
            "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), *own]),
            "OMP_NUM_THREADS": str(seat.threads),
        }
        self.seat = seat
        with log.open("ab") as stderr:
            self._pipe = subprocess.Popen(
                seat.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
                process_group=0,
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
