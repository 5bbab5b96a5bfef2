"""The machine as a reader of results wants to know it, and how much of it others used meanwhile. Reads /proc, /sys."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_PROC: Final = Path("/proc")
_CACHES: Final = Path("/sys/devices/system/cpu/cpu0/cache")


def describe_machine(threads: int) -> dict[str, Any]:
    """Facts that figures depend on. The host's name and its user are none of them."""
    import numpy as np

    from kvwise import __version__
    from kvwise.backends.native.backend import chosen_isa
    from kvwise.ledger.host import read_cpu_budget, read_host_memory

    return {
        "cpu": _cpu_model(),
        "cpus": read_cpu_budget().cpus,
        "threads": threads,
        "isa": chosen_isa(),
        "caches": _caches(),
        "memory_bytes": read_host_memory().total_bytes,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kvwise": __version__,
    }


def _cpu_model() -> str:
    try:
        lines = (_PROC / "cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _caches() -> dict[str, str]:
    """Level and kind to size, of the first processor; none where the kernel does not say."""
    found = {}
    for index in sorted(_CACHES.glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        found[f"L{level} {kind.lower()}"] = size
    return found


@dataclass(slots=True)
class Others:
    """The share of all processors' time that others used; 0 where the kernel does not say."""

    share: float = 0.0


@contextmanager
def watching_others() -> Iterator[Others]:
    """Filled in at the end: what this process did not use of the time that processors were busy."""
    seen = Others()
    busy, own, start = _busy_s(), time.process_time(), time.perf_counter()
    yield seen
    spent = time.perf_counter() - start
    foreign = _busy_s() - busy - (time.process_time() - own)
    share = foreign / (spent * (os.cpu_count() or 1)) if spent else 0.0
    seen.share = round(min(max(share, 0.0), 1.0), 4)  # the kernel counts in ticks: in a short time one is more than all


def _busy_s() -> float:
    """Seconds that processors were busy since the machine started, those that a hypervisor took included."""
    try:
        fields = (_PROC / "stat").read_text("utf-8").partition("\n")[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, stolen = (int(field) for field in fields)
    return (user + nice + system + irq + softirq + stolen) / os.sysconf("SC_CLK_TCK")
