"""Each matmul kernel's distance to this machine's floor: GB/s for few rows, Gop/s for many.

    python benchmarks/native_matmul.py [--threads 2] [--isa avx512] [--types q8_0,q4_1,q4_k+f32] [--json]

A type's name with +f32: its weights on float32 activations, as they are on their way to K and V.

The floor is measured first, by our own loops: memory read at the matrix's own working set, and multiply-adds on
registers alone. Medians; a shared machine disturbs single samples.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from kvwise.backends.native import _native, layout
from kvwise.spec.dtypes import TENSOR_TYPES
from kvwise.units import GB

# [outputs, inputs] of a Qwen2.5-0.5B MLP, repeated until the working set is no cache's.
OUTPUTS, INPUTS = 4864, 896
DECODE_BYTES = 512 * 2**20
ROWS = (1, 8, 16, 512)
ALL_TYPES = ("q8_0", "q4_0", "q4_1", "f32", "f16", "bf16", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")


@dataclass(frozen=True)
class Row:
    """`bound` is the limit that `percent` is of: 'read' or 'arithmetic'."""

    type: str
    rows: int
    seconds: float
    gb_per_s: float
    gop_per_s: float
    bound: str
    percent: float


@dataclass(frozen=True)
class Limits:
    read_gb_per_s: float
    int8_gop_per_s: float
    f32_gflop_per_s: float


def median_seconds(measure: Callable[[], float], repeats: int) -> float:
    return statistics.median(measure() for _ in range(repeats))


def measure_limits(isa: str, threads: int) -> Limits:
    limits, rounds = _native.limits, 3_000_000 if isa != "scalar" else 200_000
    read = median_seconds(lambda: min(limits.read_seconds(isa, DECODE_BYTES, threads, repeats=1)), 5)
    peak = {kind: statistics.median(limits.arithmetic_rates(isa, kind, threads, rounds)) for kind in ("int8", "f32")}
    return Limits(DECODE_BYTES / read / GB, peak["int8"] / 1e9, peak["f32"] / 1e9)


def measure(kind: str, rows: int, isa: str, threads: int, limits: Limits, repeats: int) -> Row:
    tensor_type = TENSOR_TYPES[kind.removesuffix("+f32")]
    inputs = INPUTS if tensor_type.block_elements < 256 else 1024
    # Few rows stream weights from memory; many rows use one matrix again and again.
    outputs = OUTPUTS if rows > 64 else DECODE_BYTES // tensor_type.row_bytes(inputs) // 64 * 64
    rng = np.random.default_rng(0)
    raw = np.resize(rng.integers(0, 60, 2**20, np.uint8), outputs * tensor_type.row_bytes(inputs)).reshape(outputs, -1)
    packed = _native.kernels.PackedMatrix(tensor_type.name, outputs, inputs, raw, threads)
    del raw
    quantized = kind in layout.Q8_WEIGHTS
    row_bytes = inputs * 5 // 4 if quantized else 4 * inputs
    x = np.zeros((rows, row_bytes), np.uint8)
    out = np.empty((rows, outputs), np.float32)
    tiles = max(4, outputs // layout.LANES // (8 * threads) // 4 * 4)
    per_block = max(12, 256 * 1024 // row_bytes // 12 * 12)

    def once() -> float:
        start = time.perf_counter()
        packed.matmul(isa, x, None, out, tiles, per_block)
        return time.perf_counter() - start

    once()
    seconds = median_seconds(once, repeats)
    gb, gop = packed.nbytes / seconds / GB, 2 * rows * outputs * inputs / seconds / 1e9
    peak = limits.int8_gop_per_s if quantized else limits.f32_gflop_per_s
    shares = {"read": gb / limits.read_gb_per_s, "arithmetic": gop / peak}
    bound = "arithmetic" if rows > 64 else max(shares, key=lambda b: shares[b])
    return Row(kind, rows, seconds, gb, gop, bound, 100 * shares[bound])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default=_native.isas()[0], choices=_native.isas())
    parser.add_argument("--types", default=",".join(ALL_TYPES))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    limits = measure_limits(args.isa, args.threads)
    table = [
        measure(kind, int(rows), args.isa, args.threads, limits, args.repeats)
        for kind in args.types.split(",")
        for rows in args.rows.split(",")
    ]
    if args.json:
        print(json.dumps({"isa": args.isa, "threads": args.threads, "limits": asdict(limits),
                          "rows": [asdict(row) for row in table]}))  # fmt: skip
        return
    print(f"{args.isa}, {args.threads} threads: read {limits.read_gb_per_s:.1f} GB/s, "
          f"int8 {limits.int8_gop_per_s:.0f} Gop/s, float32 {limits.f32_gflop_per_s:.0f} GFLOP/s")  # fmt: skip
    print(f"{'type':8} {'rows':>5} {'ms':>9} {'GB/s':>7} {'Gop/s':>7}  of the limit")
    for r in table:
        print(f"{r.type:8} {r.rows:5} {r.seconds * 1e3:9.3f} {r.gb_per_s:7.1f} {r.gop_per_s:7.0f}  "
              f"{r.percent:3.0f} % {r.bound}")  # fmt: skip


if __name__ == "__main__":
    main()
