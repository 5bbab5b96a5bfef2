"""Attention's distance to this machine's floor: GB/s of K and V for decode, GFLOP/s for prefill.

    python benchmarks/native_attention.py [--threads 2] [--isa avx512] [--kv-type f16] [--heads NAME] [--json]

The floor is measured first, by our own loops: memory read past every cache, and multiply-adds on registers alone: of
float32, for integers of pairs of 16 bits, which is half the rate of 8-bit dot products. A decode reads K and V once; a
prefill computes 4 · head_dim FLOPs per query head and visible pair. Medians; a shared machine disturbs single samples.
Blocks of a request lie in shuffled order, as in a pool that has been in use.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from kvwise.backends.native import _native
from kvwise.backends.native.backend import NATIVE
from kvwise.program.cost import visible_positions
from kvwise.spec.kv import BLOCK_TOKENS, KV_TYPES, KVType
from kvwise.units import GB

READ_BYTES = 512 * 2**20
# (name, query heads, KV heads, head_dim)
HEADS = (
    ("SmolLM2-135M", 9, 3, 64),
    ("Qwen2.5-0.5B", 14, 2, 64),
    ("Llama-3.2-1B", 32, 8, 64),
    ("Llama-3-8B", 32, 8, 128),
)
# (context, tokens computed in the step, requests)
STEPS = ((128, 1, 1), (2048, 1, 1), (2048, 1, 8), (16384, 1, 1), (512, 512, 1), (2048, 512, 1), (2048, 2048, 1))


@dataclass(frozen=True)
class Row:
    """`percent` is of the limit that binds: 'read' or 'arithmetic'."""

    heads: str
    context: int
    queries: int
    requests: int
    seconds: float
    gb_per_s: float
    gflop_per_s: float
    bound: str
    percent: float


def median_seconds(once: Callable[[], None], repeats: int) -> float:
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        once()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def measure_limits(isa: str, threads: int, kv_type: KVType) -> tuple[float, float]:
    """Bytes per second past every cache, FLOP per second on registers: the best sample, because it is a limit."""
    rounds = 4_000_000 if isa != "scalar" else 100_000
    read = min(_native.limits.read_seconds(isa, READ_BYTES, threads))
    kind, share = ("int8", 0.5) if kv_type.scale_bytes else ("f32", 1.0)
    return READ_BYTES / read, share * max(_native.limits.arithmetic_rates(isa, kind, threads, rounds))


def measure(heads: tuple[str, int, int, int], step: tuple[int, int, int], args: argparse.Namespace) -> Row:
    name, num_q, num_kv, dim = heads
    context, queries, requests = step
    blocks = -(-context // BLOCK_TOKENS)
    layer_bytes = requests * context * KV_TYPES[args.kv_type].token_bytes(num_kv, dim, dim)
    layers = max(1, (READ_BYTES // 2) // layer_bytes) if queries == 1 else 1  # a decode's layers are in no cache
    rng = np.random.default_rng(0)
    pool = _native.kernels.AttentionLayer(
        args.isa, args.kv_type, num_q, num_kv, dim, layers * requests * blocks, context, args.threads
    )
    stored = pool.blocks()
    stored[:] = np.resize(rng.integers(0, 0x30, 2**16, np.uint8), stored.shape[1])  # finite in every type
    tables = rng.permutation(len(stored)).astype(np.int32).reshape(layers, requests, blocks)
    tokens = requests * queries
    q, k, v = (rng.standard_normal((tokens, h * dim)).astype(np.float32) for h in (num_q, num_kv, num_kv))
    out = np.empty_like(q)
    position = np.arange(context - queries, context)
    starts = np.arange(requests + 1, dtype=np.int32) * queries
    contexts = np.full(requests, context, np.int32)
    slots = [
        np.concatenate([t[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS for t in layer])
        for layer in tables
    ]

    def once() -> None:
        for layer, slot in zip(tables, slots, strict=True):
            pool.run(q, k, v, out, dim**-0.5, 0.0, 0, slot.astype(np.int32), starts, contexts, layer)

    once()
    seconds = median_seconds(once, args.repeats) / layers
    flops = 4 * dim * num_q * requests * visible_positions(queries, context, None)
    shares = {"read": layer_bytes / seconds / args.limits[0], "arithmetic": flops / seconds / args.limits[1]}
    bound = "arithmetic" if queries > 1 else max(shares, key=lambda b: shares[b])
    return Row(name, context, queries, requests, seconds, layer_bytes / seconds / GB, flops / seconds / 1e9, bound,
               100 * shares[bound])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default=_native.isas()[0], choices=_native.isas())
    parser.add_argument("--kv-type", default="f16", choices=NATIVE.kv_types)
    parser.add_argument("--heads", choices=[name for name, *_ in HEADS], help="only these; default: all")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.limits = measure_limits(args.isa, args.threads, KV_TYPES[args.kv_type])
    table = [measure(heads, step, args) for heads in HEADS for step in STEPS if args.heads in (None, heads[0])]
    if args.json:
        print(json.dumps({"isa": args.isa, "threads": args.threads, "kv_type": args.kv_type,
                          "read_bytes_per_s": args.limits[0], "flop_per_s": args.limits[1],
                          "rows": [asdict(row) for row in table]}))  # fmt: skip
        return
    print(f"{args.isa}, {args.threads} threads, KV in {args.kv_type}: read {args.limits[0] / GB:.1f} GB/s, "
          f"arithmetic {args.limits[1] / 1e9:.0f} GFLOP/s")  # fmt: skip
    print(f"{'heads':13} {'context':>7} {'tokens':>6} {'batch':>5} {'ms':>9} {'GB/s':>6} {'GFLOP/s':>8}  of the limit")
    for r in table:
        print(f"{r.heads:13} {r.context:7} {r.queries:6} {r.requests:5} {r.seconds * 1e3:9.3f} {r.gb_per_s:6.1f} "
              f"{r.gflop_per_s:8.1f}  {r.percent:3.0f} % of {r.bound}")  # fmt: skip


if __name__ == "__main__":
    main()
