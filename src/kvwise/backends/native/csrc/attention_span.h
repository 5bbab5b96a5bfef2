// One work item's query rows, all heads of one KV head at some positions, against one span of 256 tokens at a time:
// scores, softmax within the span, weighted values. Knows the paged pool's layout; attention.inl puts spans together.
#pragma once

#include "attention_items.h"
#include "attention_store.h"
#include "vec_math.h"

namespace kvw::KVW_ISA {

constexpr float kLog2E = 1.44269504f;
constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kMostInt16 = 32767.0f;

// Rows [begin, end) of a tile, and in span-relative terms what they see.
struct RowRange {
  int begin, end;
};

template <class Kv>
struct QueryTile {
  using Wide = typename Kv::Wide;
  static constexpr bool kConverts = Kv::kBytes != Wide::kBytes;
  static constexpr int kWideBlocks = 4 * Kv::kTerms;  // that fit the buffer for converted ones

  const AttentionArgs& a;
  const AttentionItem item;
  const int group, positions, first_position, dim, padded;
  const int64_t q_stride;
  float *queries, *scores, *span_out, *total_out, *query_scales;
  float *maximum, *weight_sum, *total_maximum, *total_sum;
  float *value_units, *sum_units;  // of integers: set_value_units
  uint8_t* wide;
  Visible* visible;
  const uint8_t* k[kSpanBlocks];     // the blocks of the span at hand
  const uint8_t* v[kSpanBlocks];
  const uint8_t* next[kSpanBlocks];  // K of the span after it, or V where there is none
  const F16* scales[kSpanBlocks];    // of integers

  QueryTile(const AttentionArgs& args, const AttentionItem& it, uint8_t* scratch)
      : a(args),
        item(it),
        group(group_of(args)),
        positions(it.query_end - it.query_begin),
        first_position(args.context_lens[it.request] -
                       (args.query_starts[it.request + 1] - args.query_starts[it.request]) + it.query_begin),
        dim(args.head_dim),
        padded(padded_dim(args.head_dim)),
        q_stride(query_stride(args.head_dim)) {
    const int64_t rows = tile_rows(group);
    float* left = reinterpret_cast<float*>(scratch);
    const auto take = [&left](int64_t floats) {
      float* const taken = left;
      left += floats;
      return taken;
    };
    queries = take(rows * q_stride);
    scores = take(rows * kScoreStride);
    span_out = take(rows * padded);
    total_out = take(rows * padded);
    wide = reinterpret_cast<uint8_t*>(take(kWideFloats * static_cast<int64_t>(padded)));
    value_units = take(kSpanTokens);
    sum_units = take(rows);
    query_scales = take(rows);
    maximum = take(rows);
    weight_sum = take(rows);
    total_maximum = take(rows);
    total_sum = take(rows);
    visible = reinterpret_cast<Visible*>(take(rows));
  }

  const float* query(int position) const {
    const int64_t token = a.query_starts[item.request] + item.query_begin + position;
    return a.q + (token * a.num_q_heads + static_cast<int64_t>(item.kv_head) * group) * dim;
  }

  // q's rows in units, and what their products with K are multiplied with, but for the scale of K.
  void copy_queries() {
    const float scale = a.softcap > 0 ? a.scale / a.softcap : a.scale * kLog2E;
    for (int j = 0; j < positions; ++j)
      for (int g = 0; g < group; ++g) {
        const int row = j * group + g;
        float* const to = queries + row * q_stride;
        copy_padded(query(j) + g * dim, dim, to);
        query_scales[row] = kIntegers<Kv> ? scale / static_cast<float>(rotation_run(dim)) * quantize_query(to) : scale;
      }
  }
  // In place, [padded] float32 to as many int16; returns what one of them stands for.
  float quantize_query(float* x) const {
    rotate(x, dim);
    const float largest = largest_of(x, padded);
    const bool usable = largest >= 0x1p-100f && is_finite(largest);
    const F32x16 inverse = set1(usable ? kMostInt16 / largest : 0.0f);
    uint8_t* const to = reinterpret_cast<uint8_t*>(x);
    for (int i = 0; i < padded; i += 16) store_int16(to + 2 * i, to_i32(usable ? mul(load(x + i), inverse) : zero()));
    return usable || !is_finite(largest) ? largest / kMostInt16 : 0.0f;
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
    for (int b = first_block(rows); b <= last_block(rows); ++b) {
      uint8_t* const block = key_block(a, table[b], item.kv_head);
      k[b] = block;
      v[b] = value_block(a, block);
      const bool follows = more && start + kSpanTokens + 16 * b < first_position + positions;
      uint8_t* const after = follows ? key_block(a, table[b + kSpanBlocks], item.kv_head) : nullptr;
      next[b] = follows ? after : v[b];
      if constexpr (kIntegers<Kv>) {
        scales[b] = block_scales(a, block);
        __builtin_prefetch(scales[b], 0, 2);
        if (follows) __builtin_prefetch(block_scales(a, after), 0, 2);
      }
    }
    return rows;
  }
  int first_block(RowRange rows) const { return visible[rows.begin].begin / 16; }
  int last_block(RowRange rows) const { return (visible[rows.end - 1].end - 1) / 16; }

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

  // One set of rows reads K and V as they come from memory. Where several do, both are converted first.
  static bool streams(RowRange rows) { return rows.end - rows.begin <= kMaxRows; }

  // `cold`: nothing has asked for this span's K yet.
  void score_span(RowRange rows, bool cold) {
    const int first = first_block(rows), last = last_block(rows);
    if (streams(rows)) {
      const int64_t nbytes = static_cast<int64_t>(kv_half_bytes(a.kv_type, dim));
      for (int b = first; b <= last; b += 4) {
        const int stop = last + 1 < b + 4 ? last + 1 : b + 4;
        for (int i = stop; cold && i < stop + 4 && i <= last; ++i) fetch_ahead<true>(k[i], nbytes);
        score_rows<true, Kv>(k, v, rows.begin, rows.end - rows.begin, b, stop);
      }
      return;
    }
    const uint8_t* keys[kSpanBlocks];
    for (int b = first; b <= last; b += kWideBlocks) {
      const int stop = last + 1 < b + kWideBlocks ? last + 1 : b + kWideBlocks;
      for (int i = b; i < stop; ++i) keys[i] = kConverts ? widen_keys(k[i], wide + (i - b) * wide_block_bytes()) : k[i];
      for_each_tile(rows, [&](int r, int n, int begin, int end) {
        const int from = begin / 16 > b ? begin / 16 : b, to = (end + 15) / 16 < stop ? (end + 15) / 16 : stop;
        score_rows<false, Wide>(keys, keys, r, n, from, to);
      });
    }
  }
  int64_t wide_block_bytes() const { return static_cast<int64_t>(Wide::kBytes) * padded / Kv::kTerms; }
  const uint8_t* widen_keys(const uint8_t* from, uint8_t* to) const {
    typename Kv::Vec keys[Kv::kKeyVectors];
    for (int u = 0; u < key_units<Kv>(dim); u += Kv::kKeyVectors) {
      load_keys<Kv>(from + u * Kv::kBytes, keys);
      for (int e = 0; e < Kv::kKeyVectors; ++e)
        Kv::store_sums(reinterpret_cast<float*>(to + (u + e) * Wide::kBytes), keys[e]);
    }
    return to;
  }
  template <bool ahead_known, class As>
  void score_rows(const uint8_t* const* blocks, const uint8_t* const* ahead, int r, int n, int from, int to) {
    for (int groups = (to - from + columns_for(n) - 1) / columns_for(n); groups > 0; --groups) {
      const int columns = (to - from + groups - 1) / groups;
      with_tile(n, columns, [&]<int R, int C>() {
        score_tile<R, C, ahead_known, As>(queries + r * q_stride, q_stride, blocks + from, ahead + from,
                                          key_units<Kv>(dim), query_scales + r, scales + from,
                                          scores + r * kScoreStride + 16 * from);
      });
      from += columns;
    }
  }

  // Scores to weights, in place: float32, or int16 with sum_units. maximum and weight_sum are filled.
  void softmax_span(RowRange rows) {
    const int begin = 16 * first_block(rows), end = 16 * last_block(rows) + 16;
    Visible same{0, 0};
    float unit = 0.0f;
    for (int r = rows.begin; r < rows.end; ++r) maximum[r] = mask_row(scores + r * kScoreStride, visible[r]);
    for (int r = rows.begin; r < rows.end; ++r) {
      float* const row = scores + r * kScoreStride;
      if constexpr (kIntegers<Kv>) {
        if (visible[r].begin != same.begin || visible[r].end != same.end) unit = set_value_units(visible[r]);
        same = visible[r];
        sum_units[r] = unit;
        weight_sum[r] = integer_weights(row, visible[r], maximum[r], begin, end);
      } else {
        weight_sum[r] = float_weights(row, visible[r], maximum[r]);
      }
    }
  }
  // -inf where the row does not see; returns the largest score.
  float mask_row(float* row, Visible seen) const {
    const int first = seen.begin / 16 * 16, last = (seen.end - 1) / 16 * 16;
    if (a.softcap > 0) {
      const F32x16 cap = set1(a.softcap * kLog2E);
      for (int t = first; t <= last; t += 16) store(row + t, mul(cap, tanh(load(row + t))));
    }
    const F32x16 hidden = set1(kMinusInfinity);
    store(row + first, select(lanes_below(seen.begin - first), hidden, load(row + first)));
    store(row + last, select(lanes_below(seen.end - last), load(row + last), hidden));
    F32x16 most = load(row + first);
    for (int t = first + 16; t <= last; t += 16) most = max(most, load(row + t));
    return max_of(most);
  }
  static float float_weights(float* row, Visible seen, float largest) {
    const F32x16 most = set1(largest);
    F32x16 total = zero();
    for (int t = seen.begin / 16 * 16; t < seen.end; t += 16) {
      const F32x16 e = exp2_nonpositive(sub(load(row + t), most));
      store(row + t, e);
      total = add(total, e);
    }
    return sum(total);
  }
  // int16 over [begin, end): e · value_units, 0 where the row does not see.
  float integer_weights(float* row, Visible seen, float largest, int begin, int end) const {
    uint8_t* const to = reinterpret_cast<uint8_t*>(row);
    const int first = seen.begin / 16 * 16, stop = (seen.end + 15) / 16 * 16;
    const F32x16 most = set1(largest);
    F32x16 total = zero();
    for (int t = first; t < stop; t += 16) {
      const F32x16 e = exp2_nonpositive(sub(load(row + t), most));
      total = add(total, e);
      store_int16(to + 2 * t, to_i32(mul(e, load(value_units + t))));
    }
    for (int t = begin; t < first; t += 16) store_int16(to + 2 * t, set1_i32(0));
    for (int t = stop; t < end; t += 16) store_int16(to + 2 * t, set1_i32(0));
    return sum(total);
  }
  // value_units of the tokens that a row sees: V's scale / the largest such scale, times 32767; 0 of the others in the
  // same blocks. Returns what a sum of weights times V's integers is multiplied with; no finite number where a scale
  // is none.
  float set_value_units(Visible seen) const {
    const int first = seen.begin / 16, last = (seen.end - 1) / 16;
    I32x16 sizes = set1_i32(0);
    for (int b = first; b <= last; ++b) {
      F32x16 scale = load(scales[b] + 16);
      if (b == first) scale = select(lanes_below(seen.begin - 16 * b), zero(), scale);
      if (b == last) scale = select(lanes_below(seen.end - 16 * b), scale, zero());
      store(value_units + 16 * b, scale);
      sizes = max(sizes, as_i32(abs(scale)));
    }
    const int32_t bits = max_of(sizes);
    float largest;
    std::memcpy(&largest, &bits, sizeof largest);
    const F32x16 inverse = set1(largest > 0 && is_finite(largest) ? kMostInt16 / largest : 0.0f);
    for (int b = first; b <= last; ++b) store(value_units + 16 * b, mul(load(value_units + 16 * b), inverse));
    return largest / kMostInt16;
  }

  void value_span(RowRange rows) {
    std::memset(span_out + static_cast<int64_t>(rows.begin) * padded, 0,
                sizeof(float) * (rows.end - rows.begin) * padded);
    const int first = first_block(rows), last = last_block(rows);
    const bool whole_vectors = value_stride<Kv>(dim) == padded / 16 * Kv::kBytes;
    if (streams(rows) && whole_vectors) {
      const int64_t stride = value_stride<Kv>(dim);
      value_rows<true, Kv>(v, next, stride, rows.begin, rows.end - rows.begin, 16 * first, 16 * last + 16);
    } else {
      const bool converts = kConverts || !whole_vectors;
      const int64_t stride = converts ? Wide::kBytes * padded / 16 : value_stride<Kv>(dim);
      for (int b = first; b <= last; b += kWideBlocks) {
        const int stop = last + 1 < b + kWideBlocks ? last + 1 : b + kWideBlocks;
        const uint8_t* values[kSpanBlocks];
        for (int i = b; i < stop; ++i)
          values[i] = converts ? widen_values(v[i], wide + (i - b) * wide_block_bytes()) : v[i];
        for_each_tile(rows, [&](int r, int n, int begin, int end) {
          value_rows<false, Wide>(values, values, stride, r, n, begin > 16 * b ? begin : 16 * b,
                                  end < 16 * stop ? end : 16 * stop);
        });
      }
    }
    for (int r = rows.begin; kIntegers<Kv> && r < rows.end; ++r) {
      const F32x16 unit = set1(sum_units[r]);
      float* const out = span_out + static_cast<int64_t>(r) * padded;
      for (int i = 0; i < padded; i += 16) store(out + i, mul(Kv::as_float(Kv::load_sums(out + i)), unit));
    }
  }
  const uint8_t* widen_values(const uint8_t* from, uint8_t* to) const {
    const int vectors = padded / 16, stride = value_stride<Kv>(dim);
    float* const wide_values = reinterpret_cast<float*>(to);
    if (stride == vectors * Kv::kBytes) {
      for (int64_t i = 0; i < 16 / Kv::kTerms * vectors; ++i)
        Kv::store_sums(wide_values + 16 * i, Kv::load_vector(from + i * Kv::kBytes));
    } else if constexpr (!kIntegers<Kv>) {
      for (int t = 0; t < 16; ++t)
        for (int i = 0; i < dim; i += 16)
          store(wide_values + t * padded + i,
                Kv::load_first(from + t * stride + i / 16 * Kv::kBytes, dim - i < 16 ? dim - i : 16));
    }
    return to;
  }
  template <bool ahead_known, class As>
  void value_rows(const uint8_t* const* blocks, const uint8_t* const* ahead, int64_t stride, int r, int n, int begin,
                  int end) {
    if (begin >= end) return;
    int common_begin = visible[r + n - 1].begin, common_end = visible[r].end;
    if (common_begin < begin) common_begin = begin;
    if (common_end > end) common_end = end;
    if (common_begin > common_end) common_begin = common_end = end;
    if (kIntegers<Kv>) {  // whole blocks, all of them common
      common_begin = begin = begin / 16 * 16;
      common_end = end = (end + 15) / 16 * 16;
    }
    const int vectors = padded / 16;
    int from = 0;
    for (int groups = (vectors + columns_for(n) - 1) / columns_for(n); groups > 0; --groups) {
      const int columns = (vectors - from + groups - 1) / groups;
      const uint8_t *column[kSpanBlocks], *ahead_column[kSpanBlocks];
      for (int b = begin / 16; 16 * b < end; ++b) {
        column[b] = blocks[b] + from * As::kBytes;
        if (ahead_known) ahead_column[b] = ahead[b] + from * As::kBytes;
      }
      with_tile(n, columns, [&]<int R, int C>() {
        value_tile<R, C, ahead_known, As>(scores + r * kScoreStride, column, ahead_column, stride, begin, common_begin,
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
