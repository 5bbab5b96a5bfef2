"""What this machine can do at most, by our own loops on the engine's own threads: the denominators of benchmarks.

    python benchmarks/limits.py [--threads N] [--json]

Read bandwidth by working set: `bytes` are shared out among the threads and read again and again, as one stream per
thread and, where the set is no core's cache, as several with and without prefetching; the best way counts. Arithmetic:
one instruction on registers alone. The best of a few runs is the limit, the median stands beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Sequence
from typing import Any, Final

from kvwise.backends.native import _native
from kvwise.units import GB

MIB: Final = 2**20
WORKING_SETS_MIB: Final = (1, 4, 16, 32, 64, 128, 256, 512, 1024)
MANY_STREAMS_MIB: Final = 64  # from here on memory is read, and how it is asked matters
WAYS: Final = ((1, 0), (1, 2048), (2, 0), (4, 0), (4, 2048))  # streams per thread, bytes asked for ahead
READ_BYTES: Final = 2 * 2**30  # per run and way, at least one pass
ROUNDS: Final = {"scalar": 200_000}
KINDS: Final = ("int8", "f32", "bf16", "f16")
REPEATS: Final = 7


def measure(threads: int, repeats: int = REPEATS, isa: str | None = None) -> dict[str, Any]:
    """Bytes and operations per second; `read` is by working set, `arithmetic` by kind and holds what there is."""
    isa = isa or _native.isas()[0]
    rounds = ROUNDS.get(isa, 3_000_000)
    arithmetic = {
        kind: _summary(rates)
        for kind in KINDS
        if (rates := _native.limits.arithmetic_rates(isa, kind, threads, rounds, repeats))
    }
    read = [{"bytes": mib * MIB, **_read(isa, mib * MIB, threads, repeats)} for mib in WORKING_SETS_MIB]
    return {"isa": isa, "threads": threads, "read": read, "arithmetic": arithmetic}


def _read(isa: str, nbytes: int, threads: int, repeats: int) -> dict[str, Any]:
    passes = max(1, READ_BYTES // nbytes // (4 if nbytes >= MANY_STREAMS_MIB * MIB else 1))
    found = []
    for streams, ahead in WAYS if nbytes >= MANY_STREAMS_MIB * MIB else WAYS[:1]:
        seconds = _native.limits.read_seconds(isa, nbytes, threads, streams, ahead, passes, repeats)
        found.append({**_summary([passes * nbytes / s for s in seconds]), "streams": streams, "ahead": ahead})
    return max(found, key=lambda way: float(way["best"]))


def _summary(rates: Sequence[float]) -> dict[str, float]:
    return {"best": max(rates), "median": statistics.median(rates)}


def best_of(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two measurements of one machine: of each figure the better, since others can only take from it."""

    def better(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        return max(a, b, key=lambda figure: float(figure["best"]))

    return {
        **one,
        "read": [better(a, b) for a, b in zip(one["read"], other["read"], strict=True)],
        "arithmetic": {kind: better(rates, other["arithmetic"][kind]) for kind, rates in one["arithmetic"].items()},
    }


def read_rate(limits: dict[str, Any], nbytes: float) -> float:
    """Bytes per second for a working set of `nbytes`: between two measured sets, in proportion to their logarithms."""
    points = [(math.log(point["bytes"]), float(point["best"])) for point in limits["read"]]
    at = math.log(max(nbytes, 1.0))
    if at <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if at <= x1:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return points[-1][1]


def format_limits(limits: dict[str, Any]) -> str:
    lines = [f"{limits['isa']}, {limits['threads']} threads       best   median"]
    for point in limits["read"]:
        way = f"{point['streams']} streams" + (", prefetched" if point["ahead"] else "")
        lines.append(
            f"read {point['bytes'] // MIB:5} MiB  {point['best'] / GB:8.1f} {point['median'] / GB:8.1f} GB/s  {way}"
        )
    for kind, rates in limits["arithmetic"].items():
        unit = "Gop/s" if kind == "int8" else "GFLOP/s"
        lines.append(f"{kind:15} {rates['best'] / 1e9:8.0f} {rates['median'] / 1e9:8.0f} {unit}")
    return "\n".join(lines)


def main() -> None:
    from kvwise.ledger.host import read_cpu_budget

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=read_cpu_budget().usable_threads)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--isa", choices=_native.isas())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    limits = measure(args.threads, args.repeats, args.isa)
    print(json.dumps(limits) if args.json else format_limits(limits))


if __name__ == "__main__":
    main()
