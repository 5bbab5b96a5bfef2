"""Attention as a formula in float64, and a paged cache to run the kernels on. Unwritten slots hold NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvwise.backends.native import _native
from kvwise.backends.native.backend import NATIVE
from kvwise.backends.reference.kv_codec import decode, encode, rotate
from kvwise.spec.kv import BLOCK_TOKENS, KV_TYPES

ISAS: list[str] = _native.isas()
SPAN_TOKENS = 256  # kSpanTokens in csrc/attention_tile.h
ROUNDOFF = 2.0**-24  # of a float32
STORED: Final = NATIVE.kv_types

Floats = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """One layer."""

    num_q_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    kv_type: str = "f16"
    window: int = 0
    softcap: float = 0.0

    @property
    def scale(self) -> float:
        return float(np.float32(self.head_dim**-0.5))

    @property
    def has_scales(self) -> bool:
        return KV_TYPES[self.kv_type].scale_bytes > 0

    @property
    def head_bytes(self) -> int:
        """K or V of one token and head."""
        return KV_TYPES[self.kv_type].token_bytes(1, self.head_dim, 0)


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


def encoded(shape: Shape, x: Floats) -> NDArray[np.uint8]:
    """[n, num_kv_heads, bytes of a head]: what slots hold of x, in the reference's order."""
    return encode(shape.kv_type, x.reshape(len(x), shape.num_kv_heads, shape.head_dim))


def as_stored(shape: Shape, x: Floats) -> F64:
    """[n, num_kv_heads, head_dim]"""
    return decode(shape.kv_type, encoded(shape, x), shape.head_dim, np.float64)


def assert_same_bits(got: Floats, expected: Floats) -> None:
    """Equal, zeros' signs included; NaN anywhere fails."""
    assert not np.isnan(expected).any()
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


def truth(shape: Shape, tokens: Tokens) -> tuple[F64, float]:
    """out [n, num_q_heads · head_dim] for every position, and how far float32 may be from it.

    The bound, in units of float32's roundoff: n rounded additions of terms x_i are off by about √n · √(Σ x_i²). So
    are the head_dim products of a score, which becomes a relative error of its weight, and the weighted sums over a
    span's tokens and over spans. Twice that, and 16 for the single roundings. Integers are those of rotated heads;
    undoing it adds errors as it adds values. Their sums are exact, but q and the weights are rounded to 16 bits before,
    by half of 1/32767 of the largest.
    """
    n, d = len(tokens), shape.head_dim
    q = tokens.q.astype(np.float64).reshape(n, shape.num_q_heads, d)
    k, v = as_stored(shape, tokens.k), as_stored(shape, tokens.v)
    k, v = (np.repeat(x, shape.num_q_heads // shape.num_kv_heads, axis=1) for x in (k, v))
    scores = shape.scale * np.einsum("ihd,jhd->hij", q, k)
    if shape.softcap:
        scores = shape.softcap * np.tanh(scores / shape.softcap)
    row, column = np.arange(n)[:, None], np.arange(n)[None, :]
    visible = (column <= row) & ((column > row - shape.window) if shape.window else True)
    weights = np.exp(np.where(visible, scores, -np.inf) - np.where(visible, scores, -np.inf).max(2, keepdims=True))
    weights /= weights.sum(2, keepdims=True)
    out = np.einsum("hij,jhd->ihd", weights, v).reshape(n, -1)
    if shape.has_scales:
        q, k, v = (rotate(x) / np.sqrt(d & -d) for x in (q, k, v))
    products = shape.scale * np.sqrt(np.einsum("ihd,jhd->hij", q**2, k**2).max())
    terms = min(n, SPAN_TOKENS) + n // SPAN_TOKENS
    error = ROUNDOFF * (2 * np.sqrt(d) * products + 2 * np.sqrt(terms) + 16)
    if shape.has_scales:
        error += (shape.scale * abs(q).max() * np.sqrt((k**2).sum(-1).max()) + np.sqrt(terms)) / 32767
    return out, float(abs(v).max() * error)


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
