"""The machine as a benchmark's reader wants to know it. Reads /proc and /sys, where there are any."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any, Final

FLAGS: Final = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve",
)  # fmt: skip


def describe(threads: int) -> dict[str, Any]:
    cpu = _first_cpu()
    flags = set(cpu.get("flags", cpu.get("Features", "")).split())
    return {
        "cpu": cpu.get("model name", platform.machine()),
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": os.cpu_count(),
        "threads": threads,
        "caches": _caches(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "virtual": "hypervisor" in flags,
        "python": platform.python_version(),
    }


def _first_cpu() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    return {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in text.splitlines())}


def _caches() -> dict[str, str]:
    """Level and type to size, of the first processor."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        found[f"L{level} {kind.lower()}"] = size
    return found
