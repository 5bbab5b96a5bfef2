"""What this machine really gives to this process: bytes of memory and threads. Pure parsers of /proc and /sys.

    available = min( MemAvailable,
                     for the memory cgroup and each one above it: limit - usage + reclaimable file cache,
                     for ulimit -v and ulimit -d: limit - what this process has mapped already )
    threads   = min( CPUs this process may run on,
                     for the CPU cgroup and each one above it: quota / period )

Every reader takes the root under which /proc and /sys lie, so that tests can feed trees of files. Knows no model.
Sources: Linux Documentation/filesystems/proc.rst, admin-guide/cgroup-v1/memory.rst, admin-guide/cgroup-v2.rst,
getrlimit(2).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from kvwise.frozen import dataclass
from kvwise.units import KiB

_ROOT: Final = Path("/")
_UNLIMITED: Final = 2**60  # cgroup v1 says "no limit" with the largest page-aligned 63-bit number


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """One bound on what may still be allocated, and the file that says so."""

    source: str
    available_bytes: int


@dataclass(frozen=True, slots=True)
class HostMemory:
    """`total_bytes`: physical, or the tightest cgroup limit. `limits`: every bound found, the tightest first."""

    total_bytes: int
    limits: tuple[MemoryLimit, ...]

    @property
    def available_bytes(self) -> int:
        """What can still be allocated without swapping or being killed."""
        return self.limits[0].available_bytes

    @property
    def source(self) -> str:
        """The file that sets the tightest bound."""
        return self.limits[0].source


@dataclass(frozen=True, slots=True)
class CpuBudget:
    """`cpus`: those the process may run on. `quota_cpus`: the tightest cgroup quota, None where there is none."""

    cpus: int
    quota_cpus: float | None

    @property
    def usable_threads(self) -> int:
        """Rounded down: a step waits for its slowest thread, and a throttled one stands still for a whole period."""
        return self.cpus if self.quota_cpus is None else max(1, min(self.cpus, int(self.quota_cpus)))


def read_host_memory(root: Path = _ROOT) -> HostMemory:
    """Memory as it is now. Where /proc is unreadable (not Linux), physical memory as sysconf has it."""
    physical, available = _meminfo(root)
    limits = [MemoryLimit("MemAvailable", available)]
    total = physical
    for group in _own_cgroups(root, "memory"):
        read = _v2_memory(group) if group.version == 2 else _v1_memory(group)
        if read is not None and read[0] < physical:
            limit, in_use = read
            total = min(total, limit)
            limits.append(MemoryLimit(f"cgroup v{group.version} {group.name}", max(0, limit - in_use)))
    for bound, limit in _process_limits(root):
        total = min(total, limit)
        limits.append(bound)
    return HostMemory(total, tuple(sorted(limits, key=lambda bound: bound.available_bytes)))


def read_cpu_budget(root: Path = _ROOT, affinity: Collection[int] | None = None) -> CpuBudget:
    """CPUs as they are now; `affinity` stands in for this process's own mask."""
    if affinity is None:
        affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    quotas = [quota for group in _own_cgroups(root, "cpu") if (quota := _cpu_quota(group)) is not None]
    return CpuBudget(max(1, len(affinity)), min(quotas, default=None))


# 'ulimit' option -> its line in /proc/self/limits, and what of /proc/self/status counts against it.
_PROCESS_LIMITS: Final = {"-v": ("Max address space", "VmSize"), "-d": ("Max data size", "VmData")}


def _process_limits(root: Path) -> Iterator[tuple[MemoryLimit, int]]:
    """Bounds on this process's own mappings, and the limits they come from; none where they are unlimited."""
    lines = _read(root / "proc/self/limits").splitlines()
    mapped = _key_values(_read(root / "proc/self/status"))
    for option, (name, field) in _PROCESS_LIMITS.items():
        soft = next((line.removeprefix(name).split()[0] for line in lines if line.startswith(name)), "unlimited")
        if soft.isdigit():
            free = max(0, int(soft) - mapped.get(field, 0) * KiB)
            yield MemoryLimit(f"ulimit {option}", free), int(soft)


def _meminfo(root: Path) -> tuple[int, int]:
    """(MemTotal, MemAvailable) in bytes."""
    fields = _key_values(_read(root / "proc/meminfo"))
    if "MemTotal" not in fields:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return pages, pages
    total = fields["MemTotal"] * KiB
    # Kernels before 3.14 have no MemAvailable: free pages and the file cache come close.
    fallback = fields.get("MemFree", 0) + fields.get("Cached", 0) + fields.get("Buffers", 0)
    return total, fields["MemAvailable"] * KiB if "MemAvailable" in fields else fallback * KiB


@dataclass(frozen=True, slots=True)
class _Cgroup:
    version: int
    name: str
    folder: Path

    def number(self, file: str) -> int | None:
        text = _read(self.folder / file).strip()
        return int(text) if text.lstrip("-").isdigit() else None


def _own_cgroups(root: Path, controller: str) -> Iterator[_Cgroup]:
    """The process's cgroup of `controller` and every one above it that is visible here, innermost first.

    /proc/self/cgroup has lines 'id:controllers:path'; version 2 has id 0 and no controllers. A mount shows the
    subtree below its own root, which in a container is not '/'.
    """
    mounts = list(_cgroup_mounts(root))
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version = 2 if number == "0" and not controllers else 1
        if version == 1 and controller not in controllers.split(","):
            continue
        for mount in mounts:
            if mount.version == version and (version == 2 or controller in mount.controllers):
                yield from _walk_up(root, mount, PurePosixPath(path), version)
                break


def _walk_up(root: Path, mount: _Mount, path: PurePosixPath, version: int) -> Iterator[_Cgroup]:
    inside = path.relative_to(mount.root) if path.is_relative_to(mount.root) else PurePosixPath(".")
    if ".." in inside.parts:
        inside = PurePosixPath(".")  # outside this namespace: its root is all that can be seen
    for part in (inside, *inside.parents):
        folder = root / mount.point.relative_to("/") / part
        if folder.is_dir():
            yield _Cgroup(version, str(mount.root / part), folder)


@dataclass(frozen=True, slots=True)
class _Mount:
    version: int
    root: PurePosixPath
    point: PurePosixPath
    controllers: tuple[str, ...]


def _cgroup_mounts(root: Path) -> Iterator[_Mount]:
    """/proc/self/mountinfo: id parent dev ROOT POINT options tags... - TYPE source SUPER_OPTIONS."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        yield _Mount(version, PurePosixPath(fields[3]), PurePosixPath(fields[4]), tuple(kind[2].split(",")))


def _v2_memory(group: _Cgroup) -> tuple[int, int] | None:
    """(limit, bytes in use that can't be reclaimed). memory.high counts: beyond it the kernel only slows us down."""
    bounds = [n for n in (group.number("memory.max"), group.number("memory.high")) if n is not None]
    usage = group.number("memory.current")
    if not bounds or usage is None:
        return None
    stat = _key_values(_read(group.folder / "memory.stat"))
    reclaimable = stat.get("inactive_file", 0) + stat.get("active_file", 0) + stat.get("slab_reclaimable", 0)
    return min(bounds), max(0, usage - reclaimable)


def _v1_memory(group: _Cgroup) -> tuple[int, int] | None:
    limit, usage = group.number("memory.limit_in_bytes"), group.number("memory.usage_in_bytes")
    if limit is None or usage is None or limit >= _UNLIMITED:
        return None
    stat = _key_values(_read(group.folder / "memory.stat"))
    return limit, max(0, usage - stat.get("total_inactive_file", 0) - stat.get("total_active_file", 0))


def _cpu_quota(group: _Cgroup) -> float | None:
    """CPUs' worth of time per period; None where it is not limited."""
    if group.version == 2:
        fields = _read(group.folder / "cpu.max").split()
        if len(fields) != 2 or not all(f.isdigit() for f in fields) or int(fields[1]) == 0:
            return None
        return int(fields[0]) / int(fields[1])
    quota, period = group.number("cpu.cfs_quota_us"), group.number("cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _key_values(text: str) -> dict[str, int]:
    """'Name:  123 kB' or 'name 123' per line; lines of another form are skipped."""
    out = {}
    for line in text.splitlines():
        fields = line.replace(":", " ", 1).split()
        if len(fields) >= 2 and fields[1].isdigit():
            out[fields[0]] = int(fields[1])
    return out


def _read(path: Path) -> str:
    """A file's text, empty where there is none that we may read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
