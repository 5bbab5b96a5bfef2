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
constexpr int kScoreStride = kSpanTokens + 16;  // floats between rows of scores; not a power of two, so that rows do
                                                // not meet in the same cache sets

// Accumulators that fit the register file beside one column of operands; the rows of a tile among many, and the most
// rows that are kept in one tile when there are no others.
#if defined(KVW_ISA_AVX512)
constexpr int kAccumulators = 24, kEvenRows = 6, kMaxRows = 8;
#elif defined(KVW_ISA_SCALAR)
constexpr int kAccumulators = 1, kEvenRows = 1, kMaxRows = 1;
#else
constexpr int kAccumulators = 6, kEvenRows = 6, kMaxRows = 6;
#endif

// The widest column group for `rows` rows: 1, 2, 3 or 4 columns.
constexpr int columns_for(int rows) {
  return kAccumulators / rows >= 4 ? 4 : kAccumulators / rows >= 1 ? kAccumulators / rows : 1;
}

// Which of a span's tokens a row sees: [begin, end) counted from the span's start.
struct Visible {
  int16_t begin, end;
};

// Asks for what will be read next, line by line as the current lines are used: blocks of the pool lie anywhere, so
// the hardware can't guess them. ahead[b] is as large as what is read of block b.
template <bool ahead_known>
KVW_INLINE void fetch_ahead(const uint8_t* p, int64_t nbytes) {
  if constexpr (ahead_known)
    for (int64_t i = 0; i < nbytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

// out[r][16 c + lane] = scales[r] · Σ_u q[r][u] · k[c][u][lane] for R rows and C blocks, of integers times the token's
// scale, key_scales[c][lane]. q's rows are `stride` apart.
template <int R, int C, bool ahead_known, class Kv>
static __attribute__((noinline)) void score_tile(const float* q, int64_t stride, const uint8_t* const* k,
                                                 const uint8_t* const* ahead, int units, const float* scales,
                                                 const F16* const* key_scales, float* out) {
  using Vec = typename Kv::Vec;
  constexpr int kDepth = Kv::kKeyVectors;
  Vec acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = Kv::nothing();
  const uint8_t* block[C];
  const float* query[R];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) block[c] = k[c];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) query[r] = q + r * stride;
  for (int64_t u = 0; u < units; u += kDepth) {
    if (ahead_known && u * Kv::kBytes % 64 == 0) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) fetch_ahead<ahead_known>(ahead[c] + u * Kv::kBytes, 64);
    }
    Vec key[C][kDepth];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) load_keys<Kv>(block[c] + u * Kv::kBytes, key[c]);
#pragma GCC unroll 2
    for (int e = 0; e < kDepth; ++e) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec unit = Kv::broadcast(query[r] + u + e);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) Kv::add_product(acc[r][c], unit, key[c][e]);
      }
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    [[maybe_unused]] F32x16 key_scale;
    if constexpr (kIntegers<Kv>) key_scale = load(key_scales[c]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      F32x16 score = mul(Kv::as_float(acc[r][c]), set1(scales[r]));
      if constexpr (kIntegers<Kv>) score = mul(score, key_scale);
      store(out + r * kScoreStride + 16 * c, score);
    }
  }
}

// Tokens [begin, end), each for the rows that see it.
template <int R, int C, class Kv>
KVW_INLINE void add_ragged(F32x16 (&acc)[R][C], const float* p, const uint8_t* const* v, int64_t v_stride, int begin,
                           int end, const Visible* visible) {
  for (int t = begin; t < end; ++t) {
    const uint8_t* row = v[t / 16] + t % 16 * v_stride;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      if (t < visible[r].begin || t >= visible[r].end) continue;
      const F32x16 weight = set1(p[r * kScoreStride + t]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = fma(weight, Kv::load_vector(row + c * Kv::kBytes), acc[r][c]);
    }
  }
}

// acc[r][16 c + lane] += Σ_t p[r][t] · v[t][16 c + lane] for R rows and C vectors, over the tokens of [begin, end)
// that the row sees. v[b] is block b, whose units are v_stride bytes apart; p is in units.
//
// Floats: tokens of [common_begin, common_end) are seen by every row. A token that a row does not see never touches
// it: what is stored there may be anything. Integers: begin and end are whole blocks, and what a row does not see has
// weight 0.
template <int R, int C, bool ahead_known, class Kv>
static __attribute__((noinline)) void value_tile(const float* p, const uint8_t* const* v, const uint8_t* const* ahead,
                                                 int64_t v_stride, int begin, int common_begin, int common_end,
                                                 int end, const Visible* visible, float* acc_rows, int64_t acc_stride) {
  using Vec = typename Kv::Vec;
  constexpr int kTerms = Kv::kTerms;
  Vec acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = Kv::load_sums(acc_rows + r * acc_stride + 16 * c);

  if constexpr (!kIntegers<Kv>) add_ragged<R, C, Kv>(acc, p, v, v_stride, begin, common_begin, visible);
  for (int t = common_begin; t < common_end;) {
    const int64_t within = t % 16 / kTerms * v_stride;
    const uint8_t* row = v[t / 16] + within;
    const uint8_t* next = ahead_known ? ahead[t / 16] + within : nullptr;
    const float* unit = p + t / kTerms;
    const int stop = t / 16 * 16 + 16 < common_end ? t / 16 * 16 + 16 : common_end;
    for (; t < stop; t += kTerms, row += v_stride, ++unit) {
      if constexpr (ahead_known) {
        fetch_ahead<ahead_known>(next, C * Kv::kBytes);
        next += v_stride;
      }
      Vec value[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) value[c] = Kv::load_vector(row + c * Kv::kBytes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec weight = Kv::broadcast(unit + r * kScoreStride);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) Kv::add_product(acc[r][c], weight, value[c]);
      }
    }
  }
  if constexpr (!kIntegers<Kv>) add_ragged<R, C, Kv>(acc, p, v, v_stride, common_end, end, visible);

#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) Kv::store_sums(acc_rows + r * acc_stride + 16 * c, acc[r][c]);
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
