// How one attention op is cut into work items, and the sizes of what they need. Arithmetic on shapes only.
//
//   a request that computes several tokens:  (KV head, tile of query positions), the last positions first
//   a request that computes one token:       (KV head), or (KV head, some spans) where the context has several spans
//                                            and the memory for their partial results is still free
#pragma once

#include "attention_tile.h"
#include "kernel_table.h"

namespace kvw::KVW_ISA {

// A tile has about this many query rows (positions times the query heads of a KV head): enough that converting K and V
// is paid back (with 48 it took 8 % of the time, with 96 4 %), few enough that the scores of a span stay in the
// second-level cache.
constexpr int kTileRows = 96;

KVW_INLINE int group_of(const AttentionArgs& a) { return a.num_q_heads / a.num_kv_heads; }
KVW_INLINE int positions_per_tile(int group) { return group < kTileRows ? kTileRows / group : 1; }
KVW_INLINE int first_visible(int position, int window) {
  return window > 0 && position + 1 > window ? position + 1 - window : 0;
}

// What a span of a split decode leaves for the combination, per query head:
//   floats  maximum | sum | 14 unused | out[padded head_dim], not yet divided
// After kSplitCounters int32 counters, one per (request, KV head): how many of its spans are done. They are zero
// between ops: the item that completes the count combines, and sets it back.
constexpr int kSplitCounters = 4096;
constexpr int kPartialHeader = 16;
KVW_INLINE int64_t partial_floats(int head_dim) { return kPartialHeader + padded_dim(head_dim); }
KVW_INLINE int64_t span_partial_bytes(int num_q_heads, int head_dim) {
  return 4 * num_q_heads * partial_floats(head_dim);
}
static size_t attention_shared_bytes(int num_q_heads, int, int head_dim, int64_t max_context) {
  const int64_t spans = (max_context + kSpanTokens - 1) / kSpanTokens;
  return static_cast<size_t>(4 * kSplitCounters + spans * span_partial_bytes(num_q_heads, head_dim));
}
KVW_INLINE int64_t spans_that_fit(const AttentionArgs& a) {
  const int64_t bytes = static_cast<int64_t>(a.shared_bytes) - 4 * kSplitCounters;
  if (a.shared == nullptr || bytes <= 0) return 0;
  const int64_t fit = bytes / span_partial_bytes(a.num_q_heads, a.head_dim);
  return fit < kSplitCounters / a.num_kv_heads ? fit : kSplitCounters / a.num_kv_heads;
}

// Units between the rows of q: not a multiple of a cache set's reach, so that rows do not meet in the same sets.
KVW_INLINE int64_t query_stride(int head_dim) { return padded_dim(head_dim) + 16; }

// One thread's floats, in this order (P = padded head_dim, rows = the rows of a tile):
//   queries[rows][query_stride] scores[rows][kScoreStride] span_out[rows][P] total_out[rows][P]
//   wide[kWideFloats · P]: K or V of some blocks, converted
//   value_units[kSpanTokens]
//   sum_units, query_scales, maximum, weight_sum, total_maximum, total_sum, visible [rows each]
constexpr int kWideFloats = 64;
constexpr int kFloatsPerRow = 7;
KVW_INLINE int64_t tile_rows(int group) {
  const int64_t rows = static_cast<int64_t>(group) * positions_per_tile(group);
  return (rows + 15) / 16 * 16;
}
static size_t attention_scratch_bytes(int num_q_heads, int num_kv_heads, int head_dim) {
  const int64_t rows = tile_rows(num_q_heads / num_kv_heads), dim = padded_dim(head_dim);
  const int64_t per_row = query_stride(head_dim) + kScoreStride + 2 * dim + kFloatsPerRow;
  return static_cast<size_t>(4 * (rows * per_row + kWideFloats * dim + kSpanTokens));
}

struct AttentionItem {
  int request, kv_head;
  int query_begin, query_end;  // among the request's tokens of this step
  int span_begin, span_end;    // a split decode: the spans to compute; else equal
  int first_span, num_spans;   // of a split decode: all spans of the request
  int64_t slot;                // of a split decode: the place of first_span among the partial results
};

// Spans of one item of a split decode: several where there are many, so that what is read next is known ahead.
constexpr int kMaxItemSpans = 4, kEnoughItems = 16;
KVW_INLINE int spans_per_item(int num_spans, int num_kv_heads) {
  const int spans = num_spans * num_kv_heads / kEnoughItems;
  return spans < 1 ? 1 : spans < kMaxItemSpans ? spans : kMaxItemSpans;
}

// Walks the requests in order; calls visit(item with request, spans and slot set, tiles, items) until it returns false.
template <class Visit>
KVW_INLINE void for_each_request(const AttentionArgs& a, Visit&& visit) {
  const int per_tile = positions_per_tile(group_of(a));
  int64_t free_spans = spans_that_fit(a), slot = 0;
  for (int request = 0; request < a.num_requests; ++request) {
    const int queries = a.query_starts[request + 1] - a.query_starts[request];
    AttentionItem item{request, 0, 0, queries, 0, 0, 0, 0, 0};
    int tiles = (queries + per_tile - 1) / per_tile;
    if (queries == 1) {
      const int position = a.context_lens[request] - 1;
      item.first_span = first_visible(position, a.window) / kSpanTokens;
      item.num_spans = position / kSpanTokens - item.first_span + 1;
      if (item.num_spans > 1 && slot + item.num_spans <= free_spans) {
        const int spans = spans_per_item(item.num_spans, a.num_kv_heads);
        item.span_begin = item.first_span;
        item.span_end = item.first_span + spans;
        item.slot = slot;
        slot += item.num_spans;
        tiles = (item.num_spans + spans - 1) / spans;
      }
    }
    if (!visit(item, tiles, static_cast<int64_t>(tiles) * a.num_kv_heads)) return;
  }
}

static int64_t attention_items(const AttentionArgs& a) {
  int64_t total = 0;
  for_each_request(a, [&](const AttentionItem&, int, int64_t items) {
    total += items;
    return true;
  });
  return total;
}

static AttentionItem attention_item(const AttentionArgs& a, int64_t index) {
  AttentionItem found{};
  for_each_request(a, [&](AttentionItem item, int tiles, int64_t items) {
    if (index >= items) {
      index -= items;
      return true;
    }
    item.kv_head = static_cast<int>(index / tiles);
    const int tile = tiles - 1 - static_cast<int>(index % tiles);
    if (item.span_end > item.span_begin) {
      const int spans = item.span_end - item.span_begin, end = item.first_span + item.num_spans;
      item.span_begin += tile * spans;
      item.span_end = end < item.span_begin + spans ? end : item.span_begin + spans;
    } else {
      const int per_tile = positions_per_tile(group_of(a)), queries = item.query_end;
      item.query_begin = tile * per_tile;
      item.query_end = queries < item.query_begin + per_tile ? queries : item.query_begin + per_tile;
    }
    found = item;
    return false;
  });
  return found;
}

}  // namespace kvw::KVW_ISA
