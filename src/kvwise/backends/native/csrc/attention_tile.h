// The two inner loops of attention, for a handful of query rows at a time: scores = q · K and out += p · V.
//
// Both keep one accumulator per result and walk the sum in one order (head_dim for scores, tokens for values), so a
// result does not depend on which rows or columns were computed beside it.
#pragma once

#include "attention_kv.h"

namespace kvw::KVW_ISA {

constexpr int kSpanTokens = 256;  // softmax is taken span by span, anchored at position 0; long enough to hide the
                                  // combination, short enough that its scores stay in cache and threads get several
constexpr int kSpanBlocks = kSpanTokens / 16;
constexpr int kQueryStride = kMaxHeadDim + 16;   // floats between query rows; not a power of two, so that rows do
constexpr int kScoreStride = kSpanTokens + 16;   // not meet in the same cache sets

// Accumulators that fit the register file beside one column of operands; the rows of a tile among many, and the most
// rows that are kept in one tile when there are no others.
#if defined(KVW_ISA_AVX512)
constexpr int kAccumulators = 24, kEvenRows = 6, kMaxRows = 8;
#elif defined(KVW_ISA_SCALAR)
constexpr int kAccumulators = 1, kEvenRows = 1, kMaxRows = 1;
#else
constexpr int kAccumulators = 6, kEvenRows = 6, kMaxRows = 6;
#endif
constexpr int kMaxColumns = 4;

// The widest column group for `rows` rows.
constexpr int columns_for(int rows) {
  return kAccumulators / rows < kMaxColumns ? (kAccumulators / rows < 1 ? 1 : kAccumulators / rows) : kMaxColumns;
}

// Which of a span's tokens a row sees: [begin, end) counted from the span's start.
struct Visible {
  int16_t begin, end;
};

// Asks for what will be read next, line by line as the current lines are used: blocks of the pool lie anywhere, so
// the hardware can't guess them. ahead[b] is as large as what is read of block b.
template <bool ahead_known>
KVW_INLINE void fetch_ahead(const void* p, int64_t nbytes) {
  if constexpr (ahead_known)
    for (int64_t i = 0; i < nbytes; i += 64) __builtin_prefetch(static_cast<const char*>(p) + i, 0, 2);
}
template <class T>
constexpr int vector_bytes() {  // of 16 elements
  return 16 * static_cast<int>(sizeof(T)) / kPacked<T>;
}

// out[r][16 c + lane] = scale · Σ_d q[r][d] · k[c][d][lane] for R rows and C blocks.
template <int R, int C, bool ahead_known, class T>
static __attribute__((noinline)) void score_tile(const float* q, const T* const* k, const T* const* ahead,
                                                 int head_dim, float scale, float* out) {
  F32x16 acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = zero();
  const T* block[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) block[c] = k[c];
  constexpr int kDepth = kKeyRows<T>;
  for (int d = 0; d < head_dim; d += kDepth) {
    if (d * vector_bytes<T>() % 64 == 0) {
#pragma GCC unroll 4
      for (int c = 0; ahead_known && c < C; ++c) fetch_ahead<ahead_known>(ahead[c] + 16 * d / kPacked<T>, 64);
    }
    F32x16 key[C][kDepth];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) load_keys(block[c], d, key[c]);
#pragma GCC unroll 2
    for (int e = 0; e < kDepth; ++e) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F32x16 query = set1(q[r * kQueryStride + d + e]);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) acc[r][c] = fma(query, key[c][e], acc[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(out + r * kScoreStride + 16 * c, mul(acc[r][c], set1(scale)));
}

// Tokens [begin, end), each for the rows that see it.
template <int R, int C, class T>
KVW_INLINE void add_ragged(F32x16 (&acc)[R][C], const float* p, const T* const* v, int64_t v_stride, int begin, int end,
                           const Visible* visible) {
  for (int t = begin; t < end; ++t) {
    const T* row = v[t / 16] + t % 16 * v_stride / kPacked<T>;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      if (t < visible[r].begin || t >= visible[r].end) continue;
      const F32x16 weight = set1(p[r * kScoreStride + t]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = fma(weight, load(row + 16 * c / kPacked<T>), acc[r][c]);
    }
  }
}

// acc[r][16 c + lane] += Σ_t p[r][t] · v[t][16 c + lane] for R rows and C vectors, over the tokens of [begin, end)
// that the row sees. Tokens of [common_begin, common_end) are seen by every row. v[b] is block b, 16 rows of
// v_stride elements. A token that a row does not see never touches it: what is stored there may be anything.
template <int R, int C, bool ahead_known, class T>
static __attribute__((noinline)) void value_tile(const float* p, const T* const* v, const T* const* ahead,
                                                 int64_t v_stride, int begin, int common_begin, int common_end,
                                                 int end, const Visible* visible, float* acc_rows, int64_t acc_stride) {
  F32x16 acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = load(acc_rows + r * acc_stride + 16 * c);

  add_ragged<R, C>(acc, p, v, v_stride, begin, common_begin, visible);
  for (int t = common_begin; t < common_end;) {
    const T* row = v[t / 16] + t % 16 * v_stride / kPacked<T>;
    const int stop = t / 16 * 16 + 16 < common_end ? t / 16 * 16 + 16 : common_end;
    for (; t < stop; ++t, row += v_stride / kPacked<T>) {
      if constexpr (ahead_known)
        fetch_ahead<ahead_known>(ahead[t / 16] + t % 16 * v_stride / kPacked<T>, C * vector_bytes<T>());
      F32x16 value[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) value[c] = load(row + 16 * c / kPacked<T>);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F32x16 weight = set1(p[r * kScoreStride + t]);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) acc[r][c] = fma(weight, value[c], acc[r][c]);
      }
    }
  }
  add_ragged<R, C>(acc, p, v, v_stride, common_end, end, visible);

#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) store(acc_rows + r * acc_stride + 16 * c, acc[r][c]);
}

// Calls run.template operator()<R, C>() for the run-time rows and columns.
template <int R, class Run>
KVW_INLINE void with_columns(int columns, Run&& run) {
  constexpr int most = columns_for(R);
  if (columns == 1) return run.template operator()<R, 1>();
  if constexpr (most >= 2)
    if (columns == 2) return run.template operator()<R, 2>();
  if constexpr (most >= 3)
    if (columns == 3) return run.template operator()<R, 3>();
  if constexpr (most >= 4)
    if (columns == 4) return run.template operator()<R, 4>();
}
template <int R = 1, class Run>
KVW_INLINE void with_tile(int rows, int columns, Run&& run) {
  if (rows == R) return with_columns<R>(columns, run);
  if constexpr (R < kMaxRows) with_tile<R + 1>(rows, columns, run);
}

}  // namespace kvw::KVW_ISA
