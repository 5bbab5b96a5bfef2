"""Measured bytes are pages that were touched, not bytes that were asked for."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvwise.ledger.residency import Reading, process_resident_bytes, resident_bytes
from kvwise.units import KiB, MiB

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def untouched() -> Iterator[tuple[mmap.mmap, int]]:
    """8 MiB that nobody has written to, on small pages, and their address."""
    area = mmap.mmap(-1, 8 * MiB)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    view = ctypes.c_char.from_buffer(area)
    yield area, ctypes.addressof(view)
    del view
    area.close()


def touch(area: mmap.mmap, first_page: int, num_pages: int) -> None:
    for i in range(first_page, first_page + num_pages):
        area[i * PAGE] = 1


def read(address: int, nbytes: int) -> int:
    reading = resident_bytes(address, nbytes)
    if reading.source != "pagemap":
        pytest.skip("pagemap can't be read here")
    assert reading.nbytes is not None
    return reading.nbytes


def test_untouched_memory_is_not_resident(untouched: tuple[mmap.mmap, int]) -> None:
    _, address = untouched
    assert read(address, 8 * MiB) == 0


def test_exactly_the_touched_pages_are(untouched: tuple[mmap.mmap, int]) -> None:
    area, address = untouched
    touch(area, 10, 100)
    assert read(address, 8 * MiB) == 100 * PAGE
    assert read(address, 10 * PAGE) == 0
    assert read(address + 10 * PAGE, 100 * PAGE) == 100 * PAGE
    assert read(address + 60 * PAGE, 4 * MiB) == 50 * PAGE


def test_pages_at_both_ends_count_for_the_part_inside(untouched: tuple[mmap.mmap, int]) -> None:
    area, address = untouched
    touch(area, 0, 4)
    assert read(address + 100, 3 * PAGE) == 3 * PAGE
    assert read(address + 100, 7) == 7
    assert read(address + 4 * PAGE - 10, 4 * PAGE) == 10


def test_memory_given_back_is_gone(untouched: tuple[mmap.mmap, int]) -> None:
    area, address = untouched
    touch(area, 0, 100)
    area.madvise(mmap.MADV_DONTNEED, 0, 50 * PAGE)
    assert read(address, 8 * MiB) == 50 * PAGE


def test_nothing_is_nothing() -> None:
    assert resident_bytes(4096, 0).nbytes == 0


SMAPS = """\
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Size:               1024 kB
Rss:                 512 kB
Swap:                 64 kB
VmFlags: rd wr
7f0000100000-7f0000200000 r--p 00000000 08:01 42 /a file-with-dashes
Rss:                1024 kB
Swap:                  0 kB
"""


@pytest.mark.parametrize(
    ("offset", "nbytes", "expected"),
    [
        (0, MiB, 576 * KiB),
        (0, 2 * MiB, 1600 * KiB),
        (MiB, MiB, MiB),
        (MiB + 4096, 8192, 8192),
        (0, 4096, 4096),
        (4 * MiB, MiB, 0),
    ],
)
def test_smaps_stands_in_where_there_is_no_pagemap(tmp_path: Path, offset: int, nbytes: int, expected: int) -> None:
    (tmp_path / "smaps").write_text(SMAPS)
    assert resident_bytes(0x7F0000000000 + offset, nbytes, tmp_path) == Reading(expected, "smaps")


def test_a_short_pagemap_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "pagemap").write_bytes(b"\xff" * 8)
    (tmp_path / "smaps").write_text(SMAPS)
    assert resident_bytes(0x7F0000000000, MiB, tmp_path).source == "smaps"


def test_where_nothing_can_be_read_nothing_is_claimed(tmp_path: Path) -> None:
    assert resident_bytes(0x1000, 4096, tmp_path) == Reading(None, "not measured")
    assert process_resident_bytes(tmp_path) == Reading(None, "not measured")


def test_the_processes_own_size_comes_from_the_best_file(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name: x\nVmRSS:\t   2048 kB\n")
    assert process_resident_bytes(tmp_path) == Reading(2 * MiB, "VmRSS")
    (tmp_path / "smaps_rollup").write_text("0-1 ---p 0 00:00 0 [rollup]\nRss:    1024 kB\nPss: 1 kB\n")
    assert process_resident_bytes(tmp_path) == Reading(MiB, "smaps_rollup")


def test_the_process_grows_by_what_it_touches(untouched: tuple[mmap.mmap, int]) -> None:
    area, _ = untouched
    before = process_resident_bytes().nbytes
    touch(area, 0, 8 * MiB // PAGE)
    after = process_resident_bytes().nbytes
    if before is None or after is None:
        pytest.skip("this system does not say")
    assert 7 * MiB <= after - before <= 12 * MiB
