"""Paged attention against float64, and its bits against every other way to compute the same rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from native.attention_cases import (
    ISAS,
    SPAN_TOKENS,
    STORED,
    Cache,
    Shape,
    Tokens,
    assert_same_bits,
    attend,
    encoded,
    random_tokens,
    truth,
)

isas = pytest.mark.parametrize("isa", ISAS)
kv_types = pytest.mark.parametrize("kv_type", STORED)
BEST = ISAS[0]
FAST = [isa for isa in ISAS if isa != "scalar"] or ISAS


def check(shape: Shape, tokens: Tokens, isa: str, **how: object) -> None:
    expected, bound = truth(shape, tokens)
    assert abs(attend(shape, tokens, isa, **how) - expected).max() <= bound  # type: ignore[arg-type]


@isas
@kv_types
def test_every_context_up_to_two_blocks(isa: str, kv_type: str) -> None:
    """Row p of a prefill sees p + 1 tokens: all contexts at once; then one token at a time."""
    shape = Shape(kv_type=kv_type)
    tokens = random_tokens(shape, 35)
    check(shape, tokens, isa)
    check(shape, tokens, isa, chunks=[1])


@isas
@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 31, 40])
def test_windows_around_a_block(isa: str, window: int) -> None:
    shape = Shape(window=window)
    check(shape, random_tokens(shape, 70), isa)


@pytest.mark.parametrize("window", [0, 1, SPAN_TOKENS - 1, SPAN_TOKENS, SPAN_TOKENS + 1, 300])
@pytest.mark.parametrize("isa", FAST)
def test_contexts_and_windows_around_a_span(isa: str, window: int) -> None:
    shape = Shape(window=window)
    check(shape, random_tokens(shape, 2 * SPAN_TOKENS + 20), isa)


@isas
@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 50])
def test_any_number_of_query_heads_shares_a_kv_head(isa: str, ratio: int) -> None:
    shape = Shape(num_q_heads=2 * ratio, head_dim=16)
    tokens = random_tokens(shape, 40)
    check(shape, tokens, isa)
    check(shape, tokens, isa, chunks=[39, 1])


@isas
@kv_types
@pytest.mark.parametrize("head_dim", [1, 8, 16, 17, 36, 64, 80, 96, 100, 112, 128, 160, 256, 512])
def test_any_head_dim(isa: str, kv_type: str, head_dim: int) -> None:
    shape = Shape(head_dim=head_dim, kv_type=kv_type)
    tokens = random_tokens(shape, 20)
    check(shape, tokens, isa)
    check(shape, tokens, isa, chunks=[19, 1])


@isas
@pytest.mark.parametrize("softcap", [2.0, 50.0])
def test_soft_caps(isa: str, softcap: float) -> None:
    shape = Shape(softcap=softcap)
    check(shape, random_tokens(shape, 40), isa)


@isas
def test_scores_far_apart_leave_one_token_exactly(isa: str) -> None:
    """Weights below 2^-126 of the largest are 0: the output is that token's V to the bit."""
    shape = Shape(num_q_heads=1, num_kv_heads=1, head_dim=16, kv_type="f32")
    tokens = random_tokens(shape, 300)
    tokens.q[:], tokens.k[:] = 40.0, -1.0
    tokens.k[3] = 1.0
    out = attend(shape, tokens, isa)
    np.testing.assert_array_equal(out[3:], np.broadcast_to(tokens.v[3], out[3:].shape))


def heads_in_pool(cache: Cache, blocks: list[int], n: int) -> NDArray[np.uint8]:
    """[n, 2, num_kv_heads, bytes of a head] of a request's first n tokens, in the reference's order."""
    shape = cache.shape
    size = shape.head_bytes - (2 if shape.has_scales else 0)
    pool = cache.blocks[blocks].reshape(len(blocks), shape.num_kv_heads, -1)
    k, v = pool[..., : 16 * size], pool[..., 16 * size : 32 * size]
    lead = pool.shape[:2]
    if shape.kv_type == "int8":  # [d / 2][token][2] and [token / 2][d][2]
        k = k.reshape(*lead, -1, 16, 2).swapaxes(2, 3)
        v = v.reshape(*lead, 8, -1, 2).swapaxes(3, 4)
    elif shape.kv_type == "int4":
        k = nibbles(k.reshape(*lead, -1, 16, 2)).transpose(0, 1, 3, 2, 5, 4)  # [d / 4][token][2], low d and d + 2
        v = nibbles(v.reshape(*lead, 8, -1, 8, 2)).transpose(
            0, 1, 2, 5, 3, 6, 4
        )  # [token / 2][d / 16][8][2], low d and d + 8
        k, v = (np.ascontiguousarray(x).reshape(*lead, 16, -1, 2) for x in (k, v))
        k, v = (x[..., 0] | x[..., 1] << 4 for x in (k, v))
    else:
        unit = {"f32": 4}.get(shape.kv_type, 2)
        k = k.reshape(*lead, -1, 16, unit).swapaxes(2, 3)
    both = np.stack([x.reshape(*lead, 16, size) for x in (k, v)], axis=1)
    if shape.has_scales:
        scales = pool[..., 32 * size :].reshape(*lead, 2, 16, 2).swapaxes(1, 2)
        both = np.concatenate([both, scales], axis=-1)
    return both.transpose(0, 3, 1, 2, 4).reshape(-1, 2, shape.num_kv_heads, shape.head_bytes)[:n]


def nibbles(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[..., 2]: low, high."""
    return np.stack([x & 15, x >> 4], axis=-1)


def tokens_of_all_sizes(shape: Shape, n: int) -> Tokens:
    """All exponents, so that some overflow, some are subnormal, some are ties; whole heads of zeros and of one size."""
    rng = np.random.default_rng(3)
    tokens = random_tokens(shape, n)
    for x in (tokens.k, tokens.v):
        x *= np.exp2(rng.integers(-26, 18, x.shape)).astype(np.float32)
        x[::3] = np.clip(x[::3], -60000, 60000).astype(np.float16) * np.float32(1 + 2.0**-11)
        x[1], x[4] = 0.0, 2.0**-14
        x[7:9] = random_tokens(shape, 2, 9).k * [[2.0**-20], [2.0**-26]]  # scales that are subnormal, or 0
    tokens.k[0, :4] = 65519.9, 65520.0, 2.0**-25, -(2.0**-24)
    return tokens


@isas
@kv_types
@pytest.mark.parametrize("head_dim", [20, 33, 64])
def test_k_and_v_are_stored_as_the_reference_stores_them(isa: str, kv_type: str, head_dim: int) -> None:
    shape = Shape(num_q_heads=2, head_dim=head_dim, kv_type=kv_type)
    tokens = tokens_of_all_sizes(shape, 21)
    cache = Cache(shape, isa, num_blocks=4)
    blocks = cache.request(21)
    cache.step([(blocks, 0, tokens)])
    expected = np.stack([encoded(shape, tokens.k), encoded(shape, tokens.v)], axis=1)
    got = heads_in_pool(cache, blocks, 32)
    np.testing.assert_array_equal(got[:21], expected)
    assert (got[21:] == 0xFF).all()
    assert (np.delete(cache.blocks, blocks, axis=0) == 0xFF).all()


@isas
@pytest.mark.parametrize("kv_type", ["f32", "int8", "int4"])
def test_a_token_outside_the_context_or_window_never_touches_a_row(isa: str, kv_type: str) -> None:
    """Its K and V may be NaN or infinite; a row that does see it is NaN."""
    shape = Shape(window=20, kv_type=kv_type)
    clean = random_tokens(shape, 60)
    expected = attend(shape, clean, isa)
    for bad in (np.nan, np.inf):
        dirty = Tokens(clean.q, clean.k.copy(), clean.v.copy())
        dirty.k[30], dirty.v[30] = bad, bad
        out = attend(shape, dirty, isa)
        unseen = np.r_[0:30, 50:60]
        assert_same_bits(out[unseen], expected[unseen])
        assert np.isnan(out[30:50]).all()


@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        Shape(num_q_heads=14, head_dim=64, window=100),
        Shape(num_q_heads=3, num_kv_heads=1, head_dim=100, kv_type="bf16", softcap=30.0),
        Shape(num_q_heads=9, num_kv_heads=3, head_dim=80, kv_type="f32", window=300),
        Shape(num_q_heads=1, num_kv_heads=1, head_dim=128, window=257),
        Shape(num_q_heads=14, head_dim=64, kv_type="int8"),
        Shape(num_q_heads=9, num_kv_heads=3, head_dim=80, kv_type="int8", window=100, softcap=30.0),
        Shape(num_q_heads=8, num_kv_heads=2, head_dim=96, kv_type="int4"),
        Shape(num_q_heads=3, num_kv_heads=1, head_dim=100, kv_type="int4", window=300),
    ],
    ids=str,
)
class TestBits:
    """A row's bits are a function of its q and of the stored K and V that it sees."""

    def test_instruction_sets_agree(self, shape: Shape) -> None:
        tokens = random_tokens(shape, 300)
        expected = attend(shape, tokens, BEST)
        for isa in ISAS[1:]:
            assert_same_bits(attend(shape, tokens, isa), expected)

    @pytest.mark.parametrize("isa", FAST)
    def test_chunks_do_not_matter(self, shape: Shape, isa: str) -> None:
        tokens = random_tokens(shape, 530)
        expected = attend(shape, tokens, isa)
        for chunks in ([1], [7], [16], [255, 1, 1, 100], [300, 40]):
            assert_same_bits(attend(shape, tokens, isa, chunks=chunks), expected)

    @pytest.mark.parametrize("isa", FAST)
    def test_other_requests_do_not_matter(self, shape: Shape, isa: str) -> None:
        requests = [random_tokens(shape, n, seed) for seed, n in enumerate((1, 16, 33, 270, 600, 100))]
        alone = [attend(shape, tokens, isa) for tokens in requests]
        cache = Cache(shape, isa, num_blocks=80)
        tables = [cache.request(len(tokens)) for tokens in requests]
        split = [0, 15, 20, 269, 599, 0]  # decodes, chunks and a whole prefill in one step
        cache.step([(b, 0, t.part(0, s)) for b, t, s in zip(tables, requests, split, strict=True) if s])
        rows = cache.step([(b, s, t.part(s, len(t))) for b, t, s in zip(tables, requests, split, strict=True)])
        for got, expected, s in zip(rows, alone, split, strict=True):
            assert_same_bits(got, expected[s:])

    @pytest.mark.parametrize("isa", FAST)
    def test_threads_and_splitting_over_spans_do_not_matter(self, shape: Shape, isa: str) -> None:
        tokens = random_tokens(shape, 1400)
        whole = attend(shape, tokens, isa, chunks=[1399, 1], max_context=0)
        for threads, max_context in ((1, 1400), (2, 1400), (3, 4096), (2, 0)):
            out = attend(shape, tokens, isa, chunks=[1399, 1], threads=threads, max_context=max_context)
            assert_same_bits(out, whole)


def test_a_long_decode_is_several_items_when_there_is_room_for_their_results() -> None:
    shape = Shape(num_q_heads=3, num_kv_heads=1)
    tokens = random_tokens(shape, 2000)
    for max_context, items in ((0, 1), (1000, 1), (2000, 8)):
        cache = Cache(shape, BEST, num_blocks=130, max_context=max_context)
        blocks = cache.request(2000)
        cache.step([(blocks, 0, tokens.part(0, 1999))])
        cache.step([(blocks, 1999, tokens.part(1999, 2000))])
        assert cache.num_items == items


@pytest.mark.parametrize("isa", FAST)
def test_splits_of_many_steps_in_a_row(isa: str) -> None:
    """The counters that spans meet at are back at zero after each step, also when several requests share the room."""
    shape = replace(Shape(), num_q_heads=6)
    requests = [random_tokens(shape, n, seed) for seed, n in enumerate((820, 300, 600))]
    cache = Cache(shape, isa, num_blocks=120, max_context=1024, threads=2)
    tables = [cache.request(len(t)) for t in requests]
    cache.step([(b, 0, t.part(0, len(t) - 20)) for b, t in zip(tables, requests, strict=True)])
    rows = [
        cache.step([(b, len(t) - i, t.part(len(t) - i, len(t) - i + 1)) for b, t in zip(tables, requests, strict=True)])
        for i in range(20, 0, -1)
    ]
    for r, tokens in enumerate(requests):
        got = np.concatenate([step[r] for step in rows])
        assert_same_bits(got, attend(shape, tokens, isa)[-20:])


@settings(max_examples=60, deadline=None)
@given(
    ratio=st.integers(1, 10),
    num_kv_heads=st.integers(1, 3),
    head_dim=st.integers(1, 130),
    kv_type=st.sampled_from(STORED),
    window=st.one_of(st.just(0), st.integers(1, 400)),
    softcap=st.sampled_from([0.0, 20.0]),
    n=st.one_of(st.integers(1, 50), st.integers(200, 560)),
    chunks=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    isa=st.sampled_from(FAST),
)
def test_any_shape_in_any_chunks(
    ratio: int, num_kv_heads: int, head_dim: int, kv_type: str, window: int, softcap: float, n: int,
    chunks: list[int], isa: str,
) -> None:  # fmt: skip
    shape = Shape(ratio * num_kv_heads, num_kv_heads, head_dim, kv_type, window, softcap)
    tokens = random_tokens(shape, n)
    expected, bound = truth(shape, tokens)
    whole = attend(shape, tokens, isa)
    assert abs(whole - expected).max() <= bound
    assert_same_bits(attend(shape, tokens, isa, chunks=[*chunks, max(chunks)], max_context=600), whole)
