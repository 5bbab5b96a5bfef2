"""Attention as a formula in float64, and a paged cache to run the kernels on. Unwritten slots hold NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvwise.backends.native import _native
from kvwise.spec.kv import BLOCK_TOKENS

ISAS: list[str] = _native.isas()
SPAN_TOKENS = 256  # kSpanTokens in csrc/attention_tile.h
ROUNDOFF = 2.0**-24  # of a float32

Floats = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """One layer. `kv_type` f32, f16 or bf16."""

    num_q_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    kv_type: str = "f16"
    window: int = 0
    softcap: float = 0.0

    @property
    def scale(self) -> float:
        return float(np.float32(self.head_dim**-0.5))


@dataclass(frozen=True)
class Tokens:
    """q [n, num_q_heads · head_dim], k and v [n, num_kv_heads · head_dim] of one request's first n positions."""

    q: Floats
    k: Floats
    v: Floats

    def __len__(self) -> int:
        return len(self.q)

    def part(self, begin: int, end: int) -> Tokens:
        return Tokens(self.q[begin:end], self.k[begin:end], self.v[begin:end])


def random_tokens(shape: Shape, n: int, seed: int = 0) -> Tokens:
    rng = np.random.default_rng(seed)

    def normal(heads: int, size: float) -> Floats:
        return (size * rng.standard_normal((n, heads * shape.head_dim))).astype(np.float32)

    return Tokens(normal(shape.num_q_heads, 2.0), normal(shape.num_kv_heads, 1.0), normal(shape.num_kv_heads, 1.0))


def stored_bits(x: Floats, kv_type: str) -> NDArray[Any]:
    """What a slot holds of x, rounded to nearest even."""
    if kv_type == "f32":
        return x.view(np.uint32)
    if kv_type == "f16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).view(np.uint16)
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def as_stored(x: Floats, kv_type: str) -> F64:
    bits = stored_bits(x, kv_type)
    if kv_type == "f32":
        return bits.view(np.float32).astype(np.float64)
    if kv_type == "f16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def assert_same_bits(got: Floats, expected: Floats) -> None:
    """Equal, zeros' signs included; NaN anywhere fails."""
    assert not np.isnan(expected).any()
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


def truth(shape: Shape, tokens: Tokens) -> tuple[F64, float]:
    """out [n, num_q_heads · head_dim] for every position, and how far float32 may be from it.

    The bound, in units of float32's roundoff: n rounded additions of terms x_i are off by about √n · √(Σ x_i²). So
    are the head_dim products of a score, which becomes a relative error of its weight, and the weighted sums over a
    span's tokens and over spans. Twice that, and 16 for the single roundings.
    """
    n, d = len(tokens), shape.head_dim
    q = tokens.q.astype(np.float64).reshape(n, shape.num_q_heads, d)
    k = as_stored(tokens.k, shape.kv_type).reshape(n, shape.num_kv_heads, d)
    v = as_stored(tokens.v, shape.kv_type).reshape(n, shape.num_kv_heads, d)
    k, v = (np.repeat(x, shape.num_q_heads // shape.num_kv_heads, axis=1) for x in (k, v))
    scores = shape.scale * np.einsum("ihd,jhd->hij", q, k)
    if shape.softcap:
        scores = shape.softcap * np.tanh(scores / shape.softcap)
    row, column = np.arange(n)[:, None], np.arange(n)[None, :]
    visible = (column <= row) & ((column > row - shape.window) if shape.window else True)
    weights = np.exp(np.where(visible, scores, -np.inf) - np.where(visible, scores, -np.inf).max(2, keepdims=True))
    weights /= weights.sum(2, keepdims=True)
    out = np.einsum("hij,jhd->ihd", weights, v).reshape(n, -1)
    products = shape.scale * np.sqrt(np.einsum("ihd,jhd->hij", q**2, k**2).max())
    terms = min(n, SPAN_TOKENS) + n // SPAN_TOKENS
    bound = ROUNDOFF * abs(v).max() * (2 * np.sqrt(d) * products + 2 * np.sqrt(terms) + 16)
    return out, float(bound)


class Cache:
    """One layer's pool, its blocks dealt to requests in a shuffled order, and steps over it."""

    def __init__(self, shape: Shape, isa: str, *, num_blocks: int = 64, max_context: int = 4096, threads: int = 1):
        self.shape = shape
        self._layer = _native.kernels.AttentionLayer(
            isa, shape.kv_type, shape.num_q_heads, shape.num_kv_heads, shape.head_dim, num_blocks, max_context, threads
        )
        self.blocks: NDArray[np.uint8] = self._layer.blocks()
        self.blocks[:] = 0xFF  # a NaN in every type
        self._free = list(np.random.default_rng(5).permutation(num_blocks))
        self.num_items = 0

    def request(self, num_tokens: int) -> list[int]:
        """Blocks for `num_tokens` tokens."""
        return [int(self._free.pop()) for _ in range(-(-num_tokens // BLOCK_TOKENS))]

    def step(self, parts: list[tuple[list[int], int, Tokens]]) -> list[Floats]:
        """(blocks, tokens already cached, new tokens) of each request → its rows of the output."""
        new = [tokens for _, _, tokens in parts]
        positions = [np.arange(cached, cached + len(tokens)) for _, cached, tokens in parts]
        slots = [
            np.asarray(table)[p // BLOCK_TOKENS] * BLOCK_TOKENS + p % BLOCK_TOKENS
            for (table, _, _), p in zip(parts, positions, strict=True)
        ]
        tables = np.zeros((len(parts), max(len(table) for table, _, _ in parts)), np.int32)
        for row, (table, _, _) in zip(tables, parts, strict=True):
            row[: len(table)] = table
        starts = np.cumsum([0, *map(len, new)]).astype(np.int32)
        out = np.full((starts[-1], self.shape.num_q_heads * self.shape.head_dim), np.nan, np.float32)
        self.num_items = self._layer.run(
            np.concatenate([t.q for t in new]), np.concatenate([t.k for t in new]), np.concatenate([t.v for t in new]),
            out, self.shape.scale, self.shape.softcap, self.shape.window,
            np.concatenate(slots).astype(np.int32), starts,
            np.array([cached + len(tokens) for _, cached, tokens in parts], np.int32), tables,
        )  # fmt: skip
        return np.split(out, starts[1:-1])


def attend(shape: Shape, tokens: Tokens, isa: str, chunks: list[int] | None = None, **cache: Any) -> Floats:
    """All rows of one request alone, computed in chunks of these sizes (the last one repeats; default: all at once)."""
    pool = Cache(shape, isa, num_blocks=-(-len(tokens) // BLOCK_TOKENS) + 2, **cache)
    blocks = pool.request(len(tokens))
    rows, done, sizes = [], 0, list(chunks or [len(tokens)])
    while done < len(tokens):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        rows += pool.step([(blocks, done, tokens.part(done, done + size))])
        done += size
    return np.concatenate(rows)
