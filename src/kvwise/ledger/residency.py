"""How much of this process's memory is really there: pages of a range, and of the whole process.

Reads /proc/self/pagemap (per page) or smaps (per mapping); says which. Knows no ledger row.
Source: Linux Documentation/admin-guide/mm/pagemap.rst (bit 63 present, bit 62 swapped) and filesystems/proc.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvwise.frozen import dataclass
from kvwise.units import KiB

_PROC_SELF: Final = Path("/proc/self")
_ENTRY_BYTES: Final = 8
_READ_ENTRIES: Final = 2**16  # half a MiB of entries describes 256 MiB
_IN_MEMORY: Final = (1 << 63) | (1 << 62)


@dataclass(frozen=True, slots=True)
class Reading:
    """A measured size and the tool that read it. `nbytes` None: nothing here can measure it."""

    nbytes: int | None
    source: str


def resident_bytes(address: int, nbytes: int, proc: Path = _PROC_SELF) -> Reading:
    """Bytes of [address, address + nbytes) that hold a page, in memory or swapped out.

    Exact to the byte with pagemap, where the pages at both ends count for the part inside the range. The fallback
    smaps knows whole mappings only: of one that is partly inside, at most that part is counted.
    """
    if nbytes <= 0:
        return Reading(0, "pagemap")
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        return Reading(_pagemap_bytes(address, nbytes, page, proc / "pagemap"), "pagemap")
    except OSError:
        pass
    mappings = list(_smaps(proc / "smaps"))
    if not mappings:
        return Reading(None, "not measured")
    inside = 0
    for start, end, held in mappings:
        overlap = min(end, address + nbytes) - max(start, address)
        inside += max(0, min(overlap, held))
    return Reading(inside, "smaps")


def process_resident_bytes(proc: Path = _PROC_SELF) -> Reading:
    """The process's resident set. smaps_rollup counts pages; status keeps a counter that may lag by some of them."""
    for name, source, key in (("smaps_rollup", "smaps_rollup", "Rss:"), ("status", "VmRSS", "VmRSS:")):
        try:
            lines = (proc / name).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith(key):
                return Reading(int(line.split()[1]) * KiB, source)
    return Reading(None, "not measured")


def _pagemap_bytes(address: int, nbytes: int, page: int, pagemap: Path) -> int:
    import numpy as np

    first, last = address // page, (address + nbytes - 1) // page
    total = 0
    with pagemap.open("rb", buffering=0) as file:
        for start in range(first, last + 1, _READ_ENTRIES):
            count = min(_READ_ENTRIES, last + 1 - start)
            file.seek(start * _ENTRY_BYTES)
            raw = file.read(count * _ENTRY_BYTES)
            if len(raw) != count * _ENTRY_BYTES:
                raise OSError(f"{pagemap} ends early")
            here = (np.frombuffer(raw, np.uint64) & np.uint64(_IN_MEMORY)) != 0
            total += int(here.sum()) * page
            if start == first and here[0]:
                total -= address - first * page
            if start + count == last + 1 and here[-1]:
                total -= (last + 1) * page - (address + nbytes)
    return total


def _smaps(path: Path) -> Iterator[tuple[int, int, int]]:
    """(start, end, bytes resident or swapped) of each mapping."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    start = end = held = 0
    for line in lines:
        head = line.split(maxsplit=1)[0] if line else ""
        if head in ("Rss:", "Swap:"):
            held += int(line.split()[1]) * KiB
        elif "-" in head and not head.endswith(":"):
            if end:
                yield start, end, held
            low, _, high = head.partition("-")
            start, end, held = int(low, 16), int(high, 16), 0
    if end:
        yield start, end, held
