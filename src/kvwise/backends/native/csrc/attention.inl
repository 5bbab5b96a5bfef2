// Attention over paged K and V. For each (query head, position p):
//
//   tokens  max(0, p + 1 - window) .. p   in blocks of 16, in spans of 256 anchored at position 0
//   per span, in order: scores, their maximum m, e = 2^(score - m), l = Σ e, o = Σ e · v
//   spans are combined in order: M' = max(M, m), L' = L · 2^(M - M') + l · 2^(m - M'), O' likewise; out = O / L
//
// Scores are in base 2: scale · log2(e) · q·k, or cap · log2(e) · tanh(scale · q·k / cap). Which other rows, requests,
// tiles or threads are at work changes no bit: each result depends on q and on the stored K and V it sees alone.
//
// K and V in integers are those of rotated heads: so is q, and the output is rotated back. q, and the weights of V of
// a span and row, become 16-bit integers, so that both sums are exact; a token's scales multiply its scores, and its
// weights before they are rounded.
//
// The query heads of one KV head, and several positions in prefill, go through a tile together, so that K and V are
// read, and widened to float32, once for all of them.

#include "attention_span.h"

namespace kvw::KVW_ISA {

// ---- Writing K and V of this step.

template <class Kv>
static void kv_store_as(const AttentionArgs& a, int64_t token_begin, int64_t token_end) {
  for (int64_t t = token_begin; t < token_end; ++t) {
    const int slot = a.slot_mapping[t];
    for (int h = 0; h < a.num_kv_heads; ++h) {
      const int64_t row = (t * a.num_kv_heads + h) * a.head_dim;
      write_head(Kv{}, a, key_block(a, slot / 16, h), slot % 16, a.k + row, a.v + row);
    }
  }
}

static void kv_store(const AttentionArgs& a, int64_t token_begin, int64_t token_end) {
  switch (a.kv_type) {
    case KvType::f32: return kv_store_as<KvF32>(a, token_begin, token_end);
    case KvType::f16: return kv_store_as<KvF16>(a, token_begin, token_end);
    case KvType::bf16: return kv_store_as<KvBf16>(a, token_begin, token_end);
    case KvType::int8: return kv_store_as<KvInt8>(a, token_begin, token_end);
    case KvType::int4: return kv_store_as<KvInt4>(a, token_begin, token_end);
  }
}

// ---- Spans to rows of the output.

// Adds a span's (maximum, sum, out) to the running total of one row. A total that starts at (-inf, 0, 0) becomes the
// span's own values, exactly.
static void combine(float* total_maximum, float* total_sum, float* total_out, float maximum, float sum,
                    const float* out, int padded) {
  const F32x16 before = set1(*total_maximum), span = set1(maximum), most = max(before, span);
  const F32x16 keep = exp2_nonpositive(sub(before, most)), gain = exp2_nonpositive(sub(span, most));
  float lanes[16];
  store(lanes, fma(set1(*total_sum), keep, mul(set1(sum), gain)));
  *total_sum = lanes[0];
  store(lanes, most);
  *total_maximum = lanes[0];
  for (int i = 0; i < padded; i += 16)
    store(total_out + i, fma(load(total_out + i), keep, mul(load(out + i), gain)));
}

// total_out may be rotated back in place.
template <class Kv>
static void write_row(float* to, float* total_out, float total_sum, int dim) {
  if (kIntegers<Kv>) rotate(total_out, dim);
  const F32x16 inverse = set1(1.0f / total_sum / static_cast<float>(kIntegers<Kv> ? rotation_run(dim) : 1));
  for (int i = 0; i < dim; i += 16)
    store_n(to + i, mul(load(total_out + i), inverse), dim - i < 16 ? dim - i : 16);
}

template <class Kv>
static void attend_whole(QueryTile<Kv>& tile) {
  const int rows = tile.positions * tile.group;
  for (int r = 0; r < rows; ++r) {
    tile.total_maximum[r] = kMinusInfinity;
    tile.total_sum[r] = 0.0f;
  }
  std::memset(tile.total_out, 0, sizeof(float) * rows * tile.padded);
  for (int span = tile.first_span(); span <= tile.last_span(); ++span) {
    const RowRange range = tile.compute_span(span, span == tile.first_span(), span < tile.last_span());
    for (int r = range.begin; r < range.end; ++r)
      combine(tile.total_maximum + r, tile.total_sum + r, tile.total_out + static_cast<int64_t>(r) * tile.padded,
              tile.maximum[r], tile.weight_sum[r], tile.span_out + static_cast<int64_t>(r) * tile.padded, tile.padded);
  }
  for (int r = 0; r < rows; ++r) {
    const int64_t from_q = tile.query(r / tile.group) - tile.a.q + r % tile.group * tile.dim;  // out is laid out as q
    float* const total_out = tile.total_out + static_cast<int64_t>(r) * tile.padded;
    write_row<Kv>(tile.a.out + from_q, total_out, tile.total_sum[r], tile.dim);
  }
}

// Some spans of a split decode; whoever finishes the last of the (request, KV head) combines them all, in order.
template <class Kv>
static void attend_spans(QueryTile<Kv>& tile) {
  const AttentionArgs& a = tile.a;
  const AttentionItem& item = tile.item;
  float* const partials = reinterpret_cast<float*>(a.shared + 4 * kSplitCounters);
  const int64_t stride = partial_floats(tile.dim);
  const auto partial = [&](int span, int g) {
    const int64_t place = item.slot + span - item.first_span;
    return partials + (place * a.num_q_heads + static_cast<int64_t>(item.kv_head) * tile.group + g) * stride;
  };
  for (int span = item.span_begin; span < item.span_end; ++span) {
    tile.compute_span(span, span == item.span_begin, span + 1 < item.span_end);
    for (int g = 0; g < tile.group; ++g) {
      float* const to = partial(span, g);
      to[0] = tile.maximum[g];
      to[1] = tile.weight_sum[g];
      std::memcpy(to + kPartialHeader, tile.span_out + g * tile.padded, sizeof(float) * tile.padded);
    }
  }
  int32_t* const done = reinterpret_cast<int32_t*>(a.shared) + item.slot * a.num_kv_heads + item.kv_head;
  if (__atomic_add_fetch(done, item.span_end - item.span_begin, __ATOMIC_ACQ_REL) < item.num_spans) return;
  __atomic_store_n(done, 0, __ATOMIC_RELAXED);
  for (int g = 0; g < tile.group; ++g) {
    float maximum = kMinusInfinity, sum = 0.0f;
    std::memset(tile.total_out, 0, sizeof(float) * tile.padded);
    for (int span = item.first_span; span < item.first_span + item.num_spans; ++span) {
      const float* from = partial(span, g);
      combine(&maximum, &sum, tile.total_out, from[0], from[1], from + kPartialHeader, tile.padded);
    }
    write_row<Kv>(a.out + (tile.query(0) - a.q) + g * tile.dim, tile.total_out, sum, tile.dim);
  }
}

template <class Kv>
static void attention_as(const AttentionArgs& a, int64_t index, uint8_t* scratch) {
  QueryTile<Kv> tile(a, attention_item(a, index), scratch);
  tile.copy_queries();
  if (tile.item.span_end > tile.item.span_begin) {
    attend_spans(tile);
  } else {
    attend_whole(tile);
  }
}

static void attention(const AttentionArgs& a, int64_t item, uint8_t* scratch) {
  switch (a.kv_type) {
    case KvType::f32: return attention_as<KvF32>(a, item, scratch);
    case KvType::f16: return attention_as<KvF16>(a, item, scratch);
    case KvType::bf16: return attention_as<KvBf16>(a, item, scratch);
    case KvType::int8: return attention_as<KvInt8>(a, item, scratch);
    case KvType::int4: return attention_as<KvInt4>(a, item, scratch);
  }
}

}  // namespace kvw::KVW_ISA
