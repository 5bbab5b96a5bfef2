"""Measures this machine with the backend's own ops on small synthetic programs, and keeps the result in the cache.

    streams   matmuls of a kind, by rows and working set; attention of a kind, by queries per KV head and working set
    rows      ops on rows, by kind and bytes
    fixed     an op, a pass over the threads, a step, a request, a logit

A few points of a kind take about a second and are measured when a model first needs them; `kvwise probe` measures all,
in several rounds, for machines are not the same from second to second. How far the rounds are apart is told, and how
far they are from the profile before: a shared machine's clock and memory change from minute to minute.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import statistics
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Final

from kvwise.backends import BACKENDS
from kvwise.backends.native.backend import ISA_VARIABLE
from kvwise.backends.protocol import Backend
from kvwise.checkpoint.bundled import cache_dir
from kvwise.errors import BackendError, NotMeasured
from kvwise.frozen import dataclass
from kvwise.hardware.profile import DeviceProfile, load_profile, profile_path, save_profile
from kvwise.ledger.host import read_host_memory
from kvwise.planner.probe_samples import ALL, FEW, Points, Samples
from kvwise.units import format_bytes

DISTURBED: Final = 0.1  # rounds that are further than this from their middle were not alone on the machine
MEMORY: Final = "memory"
ARITHMETIC: Final = "arithmetic"

Report = Callable[[str, float], None]  # (what is measured now, the share that is done)


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
    """A profile, and how far rounds were from their middle, as a share, by what was measured.

    changes: how many times as fast as in the profile before, by MEMORY and ARITHMETIC; empty without one.
    """

    profile: DeviceProfile
    spreads: Mapping[str, float]
    changes: Mapping[str, float] = field(default_factory=dict)

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
    before = None if known is not None else load_profile(machine_profile_path(backend, threads))
    try:
        result = _probe(BACKENDS[backend], threads, kinds, known, points, report)
    except (BackendError, MemoryError) as problem:
        raise NotMeasured(f"not measured: {problem}") from None
    if before is not None:
        result = _compared(result, before)
    with suppress(OSError):  # a cache that can't be written costs the next run a second, nothing else
        save_profile(machine_profile_path(backend, threads), result.profile)
    return result


def _compared(result: ProbeResult, before: DeviceProfile) -> ProbeResult:
    """The change is part of the spread: what changed since may change again. It fades with every probe without one.

    Streams that were not measured now stay as they were.
    """
    now = replace(result.profile, streams={**before.streams, **result.profile.streams})
    kinds = [kind for kind in result.profile.streams if kind in before.streams]
    if not kinds or now.thorough is not before.thorough:
        return replace(result, profile=now)
    pairs = [(now.streams[kind], before.streams[kind]) for kind in kinds]
    changes = {
        MEMORY: statistics.median(new.bandwidth(math.inf) / old.bandwidth(math.inf) for new, old in pairs),
        ARITHMETIC: statistics.median(
            new.multiplied_bytes_per_second / old.multiplied_bytes_per_second for new, old in pairs
        ),
    }
    spread = max(now.spread, before.spread / 2, *(abs(math.log(ratio)) / 2 for ratio in changes.values()))
    return ProbeResult(replace(now, spread=spread), result.spreads, changes)


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
    samples = Samples(backend, threads, points)
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
    profile = known or samples.fixed(_cpu_facts().get("model name", platform.machine()))
    streams = {**profile.streams, **{kind: samples.figures(kind, profile) for kind in kinds}}
    spreads = samples.spreads()
    spread = statistics.median(spreads.values()) if spreads else 0.0
    thorough = points.rounds > 1 or profile.thorough
    return ProbeResult(
        replace(profile, streams=streams, spread=max(profile.spread, spread), thorough=thorough), spreads
    )
