"""How much of the machine others used during a sample. Linux; elsewhere everything counts as undisturbed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PROC_STAT: Final = Path("/proc/stat")


@dataclass
class Disturbance:
    """Of all processors during `seconds`: shares used by others, and stolen by the hypervisor."""

    pid: int | None
    seconds: float = 0.0
    foreign: float = 0.0
    stolen: float = 0.0


@dataclass(frozen=True)
class _Reading:
    busy_s: float
    stolen_s: float
    own_s: float
    at_s: float


@contextmanager
def watched(pid: int | None = None) -> Iterator[Disturbance]:
    """Fill in the disturbance of what runs inside. This process, the process `pid` and its children are not others.

    A process that starts inside is named by setting `pid` of what is yielded; it must still be there at the end.
    """
    out = Disturbance(pid)
    before = _read(pid)
    yield out
    after = _read(out.pid)
    out.seconds = after.at_s - before.at_s
    machine_s = out.seconds * (os.cpu_count() or 1)
    own_s = after.own_s - before.own_s
    out.foreign = max(0.0, after.busy_s - before.busy_s - own_s) / machine_s
    out.stolen = max(0.0, after.stolen_s - before.stolen_s) / machine_s


def wait_until_quiet(limit: float, patience_s: float) -> float:
    """Wait until others use less than `limit` of the machine over a third of a second; returns what they used last."""
    give_up = time.monotonic() + patience_s
    while True:
        with watched() as seen:
            time.sleep(1 / 3)
        if seen.foreign + seen.stolen <= limit or time.monotonic() > give_up:
            return seen.foreign + seen.stolen


def _read(pid: int | None) -> _Reading:
    own_s = time.process_time() + (0.0 if pid is None else sum(map(_cpu_seconds, _family(pid))))
    at_s = time.perf_counter()
    if not _PROC_STAT.exists():
        return _Reading(0.0, 0.0, own_s, at_s)
    fields = [int(field) for field in _PROC_STAT.read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, stolen = fields
    return _Reading((user + nice + system + irq + softirq) / _TICKS, stolen / _TICKS, own_s, at_s)


def _family(pid: int) -> Iterator[int]:
    """The process and its descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in children.read_text().split():
                yield from _family(int(child))
        except OSError:
            continue


def _cpu_seconds(pid: int) -> float:
    """Of all threads, living and ended: the clock that clock_getcpuclockid(3) names, as Linux encodes it."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0
