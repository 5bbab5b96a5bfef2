"""Memory and threads as this process may use them, from trees of /proc and /sys files."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.ledger.host import CpuBudget, read_cpu_budget, read_host_memory
from kvwise.units import GiB, MiB

MEMINFO = "MemTotal: 16777216 kB\nMemFree: 1048576 kB\nMemAvailable: 12582912 kB\nCached: 2097152 kB\nBuffers: 0 kB\n"
V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V1_CPU = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
NO_LIMIT_V1 = "9223372036854771712\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(cgroup: str, files: dict[str, str]) -> dict[str, str]:
    named = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    return {"proc/self/cgroup": f"0::{cgroup}\n", "proc/self/mountinfo": V2_MOUNT, **named}


def test_without_cgroups_it_is_mem_available(tmp_path: Path) -> None:
    memory = read_host_memory(tree(tmp_path, {}))
    assert (memory.total_bytes, memory.available_bytes, memory.source) == (16 * GiB, 12 * GiB, "MemAvailable")


def test_kernels_without_mem_available_count_free_pages_and_the_file_cache(tmp_path: Path) -> None:
    old = "".join(line for line in MEMINFO.splitlines(True) if "MemAvailable" not in line)
    assert read_host_memory(tree(tmp_path, {"proc/meminfo": old})).available_bytes == 3 * GiB


def test_an_unreadable_proc_still_gives_the_physical_memory(tmp_path: Path) -> None:
    assert read_host_memory(tmp_path).available_bytes > 64 * MiB


def test_a_v2_limit_bounds_it_and_its_file_cache_counts_as_free(tmp_path: Path) -> None:
    files = v2("/app", {
        "app/memory.max": f"{4 * GiB}\n",
        "app/memory.current": f"{3 * GiB}\n",
        "app/memory.stat": f"anon {2 * GiB}\nfile {GiB}\ninactive_file {GiB // 2}\nactive_file {GiB // 4}\n"
                           f"slab_reclaimable {GiB // 4}\n",
    })  # fmt: skip
    memory = read_host_memory(tree(tmp_path, files))
    assert (memory.total_bytes, memory.available_bytes) == (4 * GiB, 2 * GiB)
    assert memory.source == "cgroup v2 /app"


def test_shared_memory_is_file_memory_that_can_not_be_reclaimed(tmp_path: Path) -> None:
    files = v2("/app", {
        "app/memory.max": f"{4 * GiB}\n",
        "app/memory.current": f"{3 * GiB}\n",
        "app/memory.stat": f"file {3 * GiB}\nshmem {3 * GiB}\ninactive_file 0\nactive_file 0\n",
    })  # fmt: skip
    assert read_host_memory(tree(tmp_path, files)).available_bytes == GiB


def test_max_is_no_limit(tmp_path: Path) -> None:
    files = v2("/app", {"app/memory.max": "max\n", "app/memory.high": "max\n", "app/memory.current": f"{GiB}\n"})
    assert read_host_memory(tree(tmp_path, files)).source == "MemAvailable"


def test_memory_high_bounds_too(tmp_path: Path) -> None:
    files = v2("/app", {"app/memory.max": "max\n", "app/memory.high": f"{2 * GiB}\n", "app/memory.current": "0\n"})
    assert read_host_memory(tree(tmp_path, files)).available_bytes == 2 * GiB


def test_the_tightest_of_nested_groups_wins(tmp_path: Path) -> None:
    files = v2("/outer/inner", {
        "outer/memory.max": f"{2 * GiB}\n", "outer/memory.current": f"{GiB}\n",
        "outer/inner/memory.max": f"{6 * GiB}\n", "outer/inner/memory.current": f"{GiB}\n",
    })  # fmt: skip
    memory = read_host_memory(tree(tmp_path, files))
    assert (memory.available_bytes, memory.source) == (GiB, "cgroup v2 /outer")
    assert [bound.source for bound in memory.limits] == ["cgroup v2 /outer", "cgroup v2 /outer/inner", "MemAvailable"]


def test_a_container_sees_its_own_group_as_the_mounts_root(tmp_path: Path) -> None:
    mount = V1_MEMORY.replace(" / /sys", " /docker/abc /sys")
    files = {
        "proc/self/cgroup": "4:memory:/docker/abc\n",
        "proc/self/mountinfo": mount,
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GiB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GiB // 2}\n",
    }
    assert read_host_memory(tree(tmp_path, files)).available_bytes == GiB // 2


@pytest.mark.parametrize("path", ["/", "/../../other", "/gone"])
def test_a_group_that_is_not_visible_falls_back_to_the_mounts_root(tmp_path: Path, path: str) -> None:
    files = v2(path, {"memory.max": f"{GiB}\n", "memory.current": "0\n"})
    assert read_host_memory(tree(tmp_path, files)).available_bytes == GiB


def test_v1_counts_the_file_cache_of_the_whole_subtree(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n0::/\n",
        "proc/self/mountinfo": V1_MEMORY + V1_CPU,
        "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT_V1,
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{8 * GiB}\n",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{2 * GiB}\n",
        "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{2 * GiB}\n",
        "sys/fs/cgroup/memory/box/memory.stat": f"inactive_file 1\ntotal_inactive_file {GiB}\ntotal_active_file 4096\n",
    }
    memory = read_host_memory(tree(tmp_path, files))
    assert (memory.available_bytes, memory.source) == (GiB + 4096, "cgroup v1 /box")


def test_a_limit_above_the_physical_memory_binds_nothing(tmp_path: Path) -> None:
    files = v2("/app", {"app/memory.max": f"{64 * GiB}\n", "app/memory.current": f"{63 * GiB}\n"})
    memory = read_host_memory(tree(tmp_path, files))
    assert (memory.total_bytes, memory.source) == (16 * GiB, "MemAvailable")


def test_a_full_group_has_nothing_left_never_less(tmp_path: Path) -> None:
    files = v2("/app", {"app/memory.max": f"{GiB}\n", "app/memory.current": f"{2 * GiB}\n"})
    assert read_host_memory(tree(tmp_path, files)).available_bytes == 0


def test_this_machine_has_memory_and_cpus() -> None:
    memory, cpus = read_host_memory(), read_cpu_budget()
    assert 0 < memory.available_bytes <= memory.total_bytes
    assert 1 <= cpus.usable_threads <= cpus.cpus


def test_affinity_bounds_threads(tmp_path: Path) -> None:
    assert read_cpu_budget(tree(tmp_path, {}), affinity={0, 2, 5}) == CpuBudget(3, None)


@pytest.mark.parametrize(
    ("cpu_max", "threads"),
    [("max 100000", 8), ("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8),
     ("nonsense", 8), ("100000 0", 8)],
)  # fmt: skip
def test_v2_quotas_bound_threads_rounded_down_but_never_to_none(tmp_path: Path, cpu_max: str, threads: int) -> None:
    files = v2("/app", {"app/cpu.max": cpu_max + "\n"})
    assert read_cpu_budget(tree(tmp_path, files), affinity=range(8)).usable_threads == threads


@pytest.mark.parametrize(("quota", "threads"), [("-1", 8), ("300000", 3), ("0", 8)])
def test_v1_quotas(tmp_path: Path, quota: str, threads: int) -> None:
    files = {
        "proc/self/cgroup": "3:cpu,cpuacct:/box\n",
        "proc/self/mountinfo": V1_CPU,
        "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": quota + "\n",
        "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
    }
    assert read_cpu_budget(tree(tmp_path, files), affinity=range(8)).usable_threads == threads


def test_an_outer_quota_binds_an_inner_group(tmp_path: Path) -> None:
    files = v2("/outer/inner", {"outer/cpu.max": "200000 100000\n", "outer/inner/cpu.max": "max 100000\n"})
    assert read_cpu_budget(tree(tmp_path, files), affinity=range(8)).quota_cpus == 2.0


@given(st.text(max_size=200), st.text(max_size=200), st.text(max_size=200))
def test_garbage_never_raises(tmp_path_factory: pytest.TempPathFactory, meminfo: str, cgroup: str, mounts: str) -> None:
    files = {"proc/meminfo": meminfo, "proc/self/cgroup": cgroup, "proc/self/mountinfo": mounts}
    root = tree(tmp_path_factory.mktemp("host"), {k: v.encode("utf-8", "replace").decode() for k, v in files.items()})
    assert read_host_memory(root).available_bytes >= 0
    assert read_cpu_budget(root, affinity=[0]).usable_threads == 1


LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max data size             {data:<20} unlimited            bytes     \n"
    "Max address space         {space:<20} unlimited            bytes     \n"
)
STATUS = "Name:\tpython\nVmPeak:\t 2097152 kB\nVmSize:\t 1048576 kB\nVmData:\t  524288 kB\n"


@pytest.mark.parametrize(
    ("data", "space", "available", "source"),
    [
        ("unlimited", str(3 * GiB), 2 * GiB, "ulimit -v"),
        (str(3 * GiB), "unlimited", 3 * GiB - GiB // 2, "ulimit -d"),
        (str(8 * GiB), str(GiB // 2), 0, "ulimit -v"),
        ("unlimited", "unlimited", 12 * GiB, "MemAvailable"),
    ],
)
def test_what_the_shell_limits_counts_as_well(
    tmp_path: Path, data: str, space: str, available: int, source: str
) -> None:
    files = {"proc/self/limits": LIMITS.format(data=data, space=space), "proc/self/status": STATUS}
    memory = read_host_memory(tree(tmp_path, files))
    assert (memory.available_bytes, memory.source) == (available, source)


def test_this_process_s_own_limit_is_read() -> None:
    code = "from kvwise.ledger.host import read_host_memory as r; print(r().source, r().total_bytes)"
    command = f"ulimit -v {GiB // 1024} && exec {shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    read = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=True, text=True).stdout
    assert read.split() == ["ulimit", "-v", str(GiB)]
