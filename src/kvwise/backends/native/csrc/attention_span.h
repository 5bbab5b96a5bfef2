// One work item's query rows, all heads of one KV head at some positions, against one span of 256 tokens at a time:
// scores, softmax within the span, weighted values. Knows the paged pool's layout; attention.inl puts spans together.
#pragma once

#include "attention_items.h"
#include "vec_math.h"

namespace kvw::KVW_ISA {

constexpr float kLog2E = 1.44269504f;
constexpr float kMinusInfinity = -__builtin_inff();

// Rows [begin, end) of a tile, and in span-relative terms what they see.
struct RowRange {
  int begin, end;
};

template <class T>
struct QueryTile {
  const AttentionArgs& a;
  const AttentionItem item;
  const int group, positions, first_position, dim, padded;
  float *queries, *scores, *span_out, *total_out, *widened, *maximum, *weight_sum, *total_maximum, *total_sum;
  float *key_scales, *value_scales;  // of the span's tokens, where the KV type has them
  Visible* visible;
  const T* k[kSpanBlocks];     // the blocks of the span at hand
  const T* v[kSpanBlocks];
  const T* next[kSpanBlocks];  // K of the span after it, or V where there is none

  QueryTile(const AttentionArgs& args, const AttentionItem& it, uint8_t* scratch)
      : a(args),
        item(it),
        group(group_of(args)),
        positions(it.query_end - it.query_begin),
        first_position(args.context_lens[it.request] -
                       (args.query_starts[it.request + 1] - args.query_starts[it.request]) + it.query_begin),
        dim(args.head_dim),
        padded(padded_dim(args.head_dim)) {
    const int64_t rows = tile_rows(group);
    float* left = reinterpret_cast<float*>(scratch);
    const auto take = [&left](int64_t floats) {
      float* const taken = left;
      left += floats;
      return taken;
    };
    queries = take(rows * kQueryStride);
    scores = take(rows * kScoreStride);
    span_out = take(rows * padded);
    total_out = take(rows * padded);
    widened = take(64 * static_cast<int64_t>(padded));
    maximum = take(rows);
    weight_sum = take(rows);
    total_maximum = take(rows);
    total_sum = take(rows);
    visible = reinterpret_cast<Visible*>(take(rows));
    key_scales = take(kSpanTokens);
    value_scales = take(kSpanTokens);
  }

  const float* query(int position) const {
    const int64_t token = a.query_starts[item.request] + item.query_begin + position;
    return a.q + (token * a.num_q_heads + static_cast<int64_t>(item.kv_head) * group) * dim;
  }

  void copy_queries() {
    for (int j = 0; j < positions; ++j)
      for (int g = 0; g < group; ++g)
        copy_query(query(j) + g * dim, queries + (j * group + g) * kQueryStride);
  }
  void copy_query(const float* from, float* to) const {
    for (int i = 0; i < dim; i += 16) store(to + i, load_n(from + i, dim - i < 16 ? dim - i : 16));
    if (kScaled<T>) rotate(to, dim);
  }

  int first_span() const { return first_visible(first_position, a.window) / kSpanTokens; }
  int last_span() const { return (first_position + positions - 1) / kSpanTokens; }

  // The rows that see any of `span`, with visible[] filled for them and the pointers of its blocks set. `more`: the
  // next span is computed after this one.
  RowRange enter_span(int span, bool more) {
    const int start = span * kSpanTokens;
    int from = start - first_position, to = positions;
    if (from < 0) from = 0;
    if (a.window > 0 && start + kSpanTokens + a.window - 1 - first_position < to)
      to = start + kSpanTokens + a.window - 1 - first_position;
    for (int j = from; j < to; ++j) {
      const int position = first_position + j, first = first_visible(position, a.window) - start;
      const Visible seen{static_cast<int16_t>(first < 0 ? 0 : first),
                         static_cast<int16_t>(position - start + 1 < kSpanTokens ? position - start + 1 : kSpanTokens)};
      for (int g = 0; g < group; ++g) visible[j * group + g] = seen;
    }
    const RowRange rows{from * group, to * group};
    const int32_t* table = a.block_tables + static_cast<int64_t>(item.request) * a.max_blocks + span * kSpanBlocks;
    for (int b = visible[rows.begin].begin / 16; 16 * b < visible[rows.end - 1].end; ++b) {
      k[b] = key_block<const T>(a, table[b], item.kv_head);
      v[b] = value_block(a, k[b]);
      const bool follows = more && start + kSpanTokens + 16 * b < first_position + positions;
      next[b] = follows ? key_block<const T>(a, table[b + kSpanBlocks], item.kv_head) : v[b];
      if constexpr (kScaled<T>) {
        const F16* const scales = block_scales(a, table[b], item.kv_head);
        store(key_scales + 16 * b, load(scales));
        store(value_scales + 16 * b, load(scales + 16));
        if (follows) fetch_ahead<true>(block_scales(a, table[b + kSpanBlocks], item.kv_head), 64);
      }
    }
    return rows;
  }

  // Rows in even parts of at most kEvenRows (all in one, where they fit): calls body(first row, rows, begin, end) with
  // the span's tokens that any of them sees.
  template <class Body>
  void for_each_tile(RowRange rows, Body&& body) const {
    const int count = rows.end - rows.begin, tiles = count <= kMaxRows ? 1 : (count + kEvenRows - 1) / kEvenRows;
    for (int i = 0, r = rows.begin; i < tiles; ++i) {
      const int n = (rows.end - r + tiles - i - 1) / (tiles - i);
      body(r, n, visible[r].begin, visible[r + n - 1].end);
      r += n;
    }
  }

  // One set of rows reads K and V as they come from memory. Where several do, both are widened to float32 first.
  static bool streams(RowRange rows) { return rows.end - rows.begin <= kMaxRows; }
  static bool widens(RowRange rows) { return sizeof(T) != sizeof(float) && !streams(rows); }

  // What q · k is multiplied with, but for the scale of k.
  float score_scale() const {
    const float scale = a.softcap > 0 ? a.scale / a.softcap : a.scale * kLog2E;
    return kScaled<T> ? scale / static_cast<float>(rotation_run(dim)) : scale;
  }

  // `cold`: nothing has asked for this span's K yet.
  void score_span(RowRange rows, bool cold) {
    const float scale = score_scale();
    const int first = visible[rows.begin].begin / 16, last = (visible[rows.end - 1].end - 1) / 16;
    const bool widen = widens(rows);
    for (int b = first; b <= last; b = (b / 4 + 1) * 4) {
      const int stop = last + 1 < (b / 4 + 1) * 4 ? last + 1 : (b / 4 + 1) * 4;
      if (cold && streams(rows))
        for (int i = stop; i < stop + 4 && i <= last; ++i) fetch_ahead<true>(k[i], dim * vector_bytes<T>());
      const float* wide[kSpanBlocks];
      for (int i = b; widen && i < stop; ++i) {
        float* const to = widened + (i - b) * 16 * padded;
        widen_keys(k[i], to);
        wide[i] = to;
      }
      for_each_tile(rows, [&](int r, int n, int begin, int end) {
        const int from = begin / 16 > b ? begin / 16 : b, to = (end + 15) / 16 < stop ? (end + 15) / 16 : stop;
        if (widen) {
          score_rows<false>(wide, wide, r, n, from, to, scale);
        } else if (streams(rows)) {
          score_rows<true>(k, v, r, n, from, to, scale);
        } else {
          score_rows<false>(k, k, r, n, from, to, scale);
        }
      });
    }
  }
  void widen_keys(const T* block, float* to) const {
    F32x16 key[kKeyRows<T>];
    for (int d = 0; d < dim; d += kKeyRows<T>) {
      load_keys(block, d, key);
      for (int e = 0; e < kKeyRows<T>; ++e) store(to + 16 * (d + e), key[e]);
    }
  }
  template <bool ahead_known, class S>
  void score_rows(const S* const* blocks, const S* const* ahead, int r, int n, int from, int to, float scale) {
    for (int groups = (to - from + columns_for(n) - 1) / columns_for(n); groups > 0; --groups) {
      const int columns = (to - from + groups - 1) / groups;
      with_tile(n, columns, [&]<int R, int C>() {
        score_tile<R, C, ahead_known>(queries + r * kQueryStride, blocks + from, ahead + from, dim, scale,
                                      scores + r * kScoreStride + 16 * from);
      });
      from += columns;
    }
  }

  void softmax_span(RowRange rows) {
    for (int r = rows.begin; r < rows.end; ++r) {
      float* const row = scores + r * kScoreStride;
      const int begin = visible[r].begin, end = visible[r].end, first = begin / 16 * 16;
      for (int t = first; kScaled<T> && t < end; t += 16) store(row + t, mul(load(row + t), load(key_scales + t)));
      if (a.softcap > 0) {
        const F32x16 cap = set1(a.softcap * kLog2E);
        for (int t = first; t < end; t += 16) store(row + t, mul(cap, tanh(load(row + t))));
      }
      const F32x16 hidden = set1(kMinusInfinity);
      store(row + first, select(lanes_below(begin - first), hidden, load(row + first)));
      const int last = (end - 1) / 16 * 16;
      store(row + last, select(lanes_below(end - last), load(row + last), hidden));
      F32x16 most = load(row + first);
      for (int t = first + 16; t < end; t += 16) most = max(most, load(row + t));
      maximum[r] = max_of(most);
    }
    for (int r = rows.begin; r < rows.end; ++r) {
      float* const row = scores + r * kScoreStride;
      const F32x16 most = set1(maximum[r]);
      F32x16 total = zero();
      for (int t = visible[r].begin / 16 * 16; t < visible[r].end; t += 16) {
        const F32x16 e = exp2_nonpositive(sub(load(row + t), most));
        store(row + t, kScaled<T> ? mul(e, load(value_scales + t)) : e);
        total = add(total, e);
      }
      weight_sum[r] = sum(total);
    }
  }

  void value_span(RowRange rows) {
    std::memset(span_out + static_cast<int64_t>(rows.begin) * padded, 0,
                sizeof(float) * (rows.end - rows.begin) * padded);
    const int first = visible[rows.begin].begin / 16, last = (visible[rows.end - 1].end - 1) / 16;
    if (!widens(rows) && value_stride<T>(dim) == padded)
      return for_each_tile(rows, [&](int r, int n, int begin, int end) {
        if (streams(rows)) {
          value_rows<true>(v, next, r, n, begin, end);
        } else {
          value_rows<false>(v, v, r, n, begin, end);
        }
      });
    for (int b = first; b <= last; b += 4) {
      const int stop = last + 1 < b + 4 ? last + 1 : b + 4;
      const float* wide[kSpanBlocks];
      for (int i = b; i < stop; ++i) wide[i] = widen_values(i, widened + (i - b) * 16 * padded);
      for_each_tile(rows, [&](int r, int n, int begin, int end) {
        value_rows<false>(wide, wide, r, n, begin > 16 * b ? begin : 16 * b, end < 16 * stop ? end : 16 * stop);
      });
    }
  }
  const float* widen_values(int block, float* to) const {
    const int stride = value_stride<T>(dim);
    for (int t = 0; t < 16; ++t)
      for (int i = 0; i < stride; i += 16) {
        const T* from = v[block] + (t * stride + i) / kPacked<T>;
        if constexpr (kScaled<T>) {
          store(to + t * padded + i, load(from));
        } else {
          store(to + t * padded + i, load_n(from, stride - i < 16 ? stride - i : 16));
        }
      }
    return to;
  }
  template <bool ahead_known, class S>
  void value_rows(const S* const* blocks, const S* const* ahead, int r, int n, int begin, int end) {
    if (begin >= end) return;
    int common_begin = visible[r + n - 1].begin, common_end = visible[r].end;
    if (common_begin < begin) common_begin = begin;
    if (common_end > end) common_end = end;
    if (common_begin > common_end) common_begin = common_end = end;
    const int vectors = padded / 16;
    int from = 0;
    for (int groups = (vectors + columns_for(n) - 1) / columns_for(n); groups > 0; --groups) {
      const int columns = (vectors - from + groups - 1) / groups;
      const S *column[kSpanBlocks], *ahead_column[kSpanBlocks];
      for (int b = begin / 16; 16 * b < end; ++b) {
        column[b] = blocks[b] + 16 * from / kPacked<S>;
        if (ahead_known) ahead_column[b] = ahead[b] + 16 * from / kPacked<S>;
      }
      with_tile(n, columns, [&]<int R, int C>() {
        value_tile<R, C, ahead_known>(scores + r * kScoreStride, column, ahead_column, padded, begin, common_begin,
                                      common_end, end, visible + r,
                                      span_out + static_cast<int64_t>(r) * padded + 16 * from, padded);
      });
      from += columns;
    }
  }

  RowRange compute_span(int span, bool first, bool more) {
    const RowRange rows = enter_span(span, more);
    score_span(rows, first);
    softmax_span(rows);
    value_span(rows);
    return rows;
  }
};

}  // namespace kvw::KVW_ISA
