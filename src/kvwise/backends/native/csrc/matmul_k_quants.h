// Matmuls of K-quants, q5_0 and q5_1 on quantized activations.
//
// Order, per output and row: groups of eight blocks of 32 inputs in sequence. In a group each block is an exact integer,
// sub-scales included, which times the activation's scale is added to a float32 sum; its minimum times the activation's
// sum and scale is added to another; then d times the one and dmin times the other are added to the result.
//
// Few rows read the weights as they are stored. For many rows a group is opened first: taken apart once. That changes
// where integers and scales come from, not one of them nor their order, so the bits are the same.
#pragma once

#include "k_quants.h"
#include "matmul_tile.h"

namespace kvw::KVW_ISA {

// M rows of quantized activations over one group, and what of them is prepared for all tiles.
template <int M>
struct GroupRows {
  static constexpr int kTerms = 3 * kGroupBlocks;  // [half][block]; a vector is stored over [half][0 .. 15]
  const int8_t* q[M];
  const float* scale[M];
  const int8_t* sums[M];                 // as stored: a pair of int16 for each block
  alignas(64) int32_t start[M][kTerms];  // -bias · Σ x, what the integer sums start at: [0][block] if over 32 inputs
  alignas(64) float shift[M][kTerms];    // scale · Σ x

  template <int kSums, bool kMinimum>
  KVW_MEMBER void prepare(const MatmulArgs& args, int64_t row, int64_t g, int blocks, int32_t bias) {
    const int64_t inputs = args.weight.inputs, all_blocks = inputs / kQ8Block;
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const auto* x = reinterpret_cast<const int8_t*>(args.x + (row + m) * args.x_stride);
      q[m] = x + g * kGroupBlocks * kQ8Block;
      scale[m] = reinterpret_cast<const float*>(x + inputs) + g * kGroupBlocks;
      sums[m] = x + inputs + 4 * (all_blocks + g * kGroupBlocks);
      if constexpr (kMinimum && kSums == 2) continue;
      const I32x16 halves = load_half_sums(sums[m], blocks);
      const I32x16 first = first_half(halves), second = second_half(halves);
      if constexpr (kMinimum) {
        store(shift[m], mul(to_f32(add(first, second)), load_n(scale[m], blocks)));
      } else if constexpr (kSums == 1) {
        store_i32(start[m], mul(add(first, second), set1_i32(-bias)));
      } else {
        store_i32(start[m], mul(first, set1_i32(-bias)));
        store_i32(start[m] + kGroupBlocks, mul(second, set1_i32(-bias)));
      }
    }
  }
};

// total += Σ over the group's blocks of scale of x · (codes · x, scaled).
template <class Group, int M, int N>
KVW_INLINE void add_codes(const Group (&w)[N], int blocks, const GroupRows<M>& x, F32x16 (&total)[M][N]) {
  constexpr int kSums = decltype(w[0].scales(0))::kSums, kQuads = 8 / kSums;
  for (int b = 0; b < blocks; ++b) {
    I32x16 sum[kSums][M][N];
    repeat<8>([&](auto index) KVW_INLINE_LAMBDA {
      constexpr int quad = decltype(index)::value, part = quad / kQuads;
      Bytes64 code[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) code[n] = w[n].template code<quad>(b);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const Quad four = load_quad(x.q[m] + 32 * b + 4 * quad);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          if constexpr (quad % kQuads == 0) {
            sum[part][m][n] = set1_i32(Group::kHasBias ? x.start[m][part * kGroupBlocks + b] : 0);
          }
          dot_nibbles(sum[part][m][n], code[n], four);
        }
      }
    });
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const auto scales = w[n].scales(b);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        F32x16 product;
        if constexpr (kSums == 1) {
          product = scaled(scales, sum[0][m][n]);
        } else {
          product = scaled(scales, sum[0][m][n], sum[1][m][n]);
        }
        total[m][n] = fma(product, set1(x.scale[m][b]), total[m][n]);
      }
    }
  }
}

// total += Σ over the group's blocks of scale of x · (minima · sums of x).
template <class Group, int M, int N>
KVW_INLINE void add_minima(const Group (&w)[N], int blocks, const GroupRows<M>& x, F32x16 (&total)[M][N]) {
  for (int b = 0; b < blocks; ++b) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const auto minima = w[n].minima(b);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        if constexpr (decltype(w[0].scales(0))::kSums == 1) {
          total[m][n] = fma(minima, set1(x.shift[m][b]), total[m][n]);
        } else {
          const F32x16 product = to_f32(dot_int16_pairs(minima, same_pair(x.sums[m] + 4 * b)));
          total[m][n] = fma(product, set1(x.scale[m][b]), total[m][n]);
        }
      }
    }
  }
}

// acc[m][n][lane] += weight · x over one group, M rows from `row` on and N tiles.
template <class Group, int M, int N>
static void add_group(const MatmulArgs& args, const Group (&w)[N], int64_t g, int blocks, int32_t bias, int64_t row,
                      float (*acc)[N][kLanes]) {
  GroupRows<M> x;
  x.template prepare<decltype(w[0].scales(0))::kSums, Group::kHasMinimum>(args, row, g, blocks, bias);
  F32x16 total[M][N];
  auto start = [&]() KVW_INLINE_LAMBDA {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) total[m][n] = zero();
    }
  };
  auto finish = [&](int n, F32x16 factor) KVW_INLINE_LAMBDA {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) store(acc[m][n], fma(total[m][n], factor, load(acc[m][n])));
  };
  start();
  add_codes<Group, M, N>(w, blocks, x, total);
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) finish(n, w[n].d());
  if constexpr (Group::kHasMinimum) {
    start();
    add_minima<Group, M, N>(w, blocks, x, total);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) finish(n, w[n].dmin());
  }
}

// The same for any number of rows: as many as possible M at a time.
template <class Group, int M, int N>
KVW_INLINE void add_group_to_rows(const MatmulArgs& args, const Group (&w)[N], int64_t g, int blocks, int32_t bias,
                                  int64_t row, int64_t row_end, float (*acc)[N][kLanes]) {
  for (; row + M <= row_end; row += M, acc += M) add_group<Group, M, N>(args, w, g, blocks, bias, row, acc);
  if constexpr (M > 1) add_group_to_rows<Group, M / 2, N>(args, w, g, blocks, bias, row, row_end, acc);
}

// A group taken apart: codes [block][quad][lane][4], scales as float32. One for all formats that are added up alike.
template <int kSums, bool kMinimum>
struct OpenGroup {
  static constexpr bool kHasMinimum = kMinimum, kHasBias = !kMinimum;
  alignas(64) uint8_t codes[kGroupBlocks][8][64];
  alignas(64) float scale[kGroupBlocks][kSums][kLanes];
  alignas(64) float minimum[kGroupBlocks][kLanes];  // float32, or the bits of pairs of int16
  alignas(64) float factors[2][kLanes];

  template <class Format>
  KVW_MEMBER void open(const StoredGroup<Format>& group, int blocks) {
    for (int b = 0; b < blocks; ++b) {
      repeat<8>([&](auto index) KVW_INLINE_LAMBDA {
        constexpr int quad = decltype(index)::value;
        store_bytes(codes[b][quad], group.template code<quad>(b));
      });
      const auto scales = group.scales(b);
      repeat<kSums>([&](auto half) KVW_INLINE_LAMBDA { store(scale[b][decltype(half)::value], of_half<decltype(half)::value>(scales)); });
      if constexpr (kMinimum && kSums == 1) store(minimum[b], group.minima(b));
      if constexpr (kMinimum && kSums == 2) store(minimum[b], as_f32(group.minima(b)));
    }
    store(factors[0], group.d());
    if constexpr (kMinimum) store(factors[1], group.dmin());
  }
  template <int quad>
  KVW_MEMBER Bytes64 code(int b) const {
    return load_bytes(codes[b][quad]);
  }
  KVW_MEMBER auto scales(int b) const {
    if constexpr (kSums == 1) {
      return OneScale{load(scale[b][0])};
    } else {
      return TwoScales{{load(scale[b][0]), load(scale[b][1])}};
    }
  }
  KVW_MEMBER auto minima(int b) const {
    if constexpr (kSums == 1) {
      return load(minimum[b]);
    } else {
      return as_i32(load(minimum[b]));
    }
  }
  KVW_MEMBER F32x16 d() const { return load(factors[0]); }
  KVW_MEMBER F32x16 dmin() const { return load(factors[1]); }
};

// Rows at a time, and from how many rows on groups are opened.
#if defined(KVW_ISA_AVX512)
constexpr int kStoredRows = 8, kOpenRows = 6, kOpenRowsOfHalves = 4, kOpenTiles = 2, kRowsWorthOpening = 17;
#elif defined(KVW_ISA_AVX2) || defined(KVW_ISA_NEON)
constexpr int kStoredRows = 2, kOpenRows = 2, kOpenRowsOfHalves = 2, kOpenTiles = 1, kRowsWorthOpening = 5;
#else
constexpr int kStoredRows = 1, kOpenRows = 1, kOpenRowsOfHalves = 1, kOpenTiles = 1, kRowsWorthOpening = 2;
#endif

template <int N>
KVW_INLINE void store_rows(const MatmulArgs& args, int64_t tile, int64_t row, int64_t row_end,
                           const float (*acc)[N][kLanes]) {
  const int step = args.activations == Activations::q8x2 ? 2 : 1;  // rows of x that make one of the results
  for (; row < row_end; row += step, acc += step) {
    for (int n = 0; n < N; ++n) {
      const F32x16 first = load(acc[0][n]);
      store_outputs(args, tile + n, row / step, step == 2 ? add(first, load(acc[1][n])) : first);
    }
  }
}

// N tiles from `tile` on, all rows.
template <class Format, int N, bool open>
static void k_quant_tiles(const MatmulArgs& args, int64_t tile, int64_t row_begin, int64_t row_end) {
  using Stored = StoredGroup<Format>;
  constexpr int kSums = decltype(Stored{}.scales(0))::kSums;
  constexpr int kChunk = 96;  // rows that share an open group: their sums stay in L1 beside it
  alignas(64) float acc[kChunk][N][kLanes];
  OpenGroup<kSums, Format::kHasMinimum> opened[N];
  const int64_t all_blocks = args.weight.inputs / kQ8Block;
  for (int64_t row = row_begin; row < row_end; row += kChunk) {
    const int64_t end = row_end - row < kChunk ? row_end : row + kChunk;
    std::memset(acc, 0, sizeof(acc[0]) * (end - row));
    for (int64_t g = 0; g * kGroupBlocks < all_blocks; ++g) {
      const int64_t left = all_blocks - g * kGroupBlocks;
      const int blocks = left < kGroupBlocks ? static_cast<int>(left) : kGroupBlocks;
      Stored stored[N];
      for (int n = 0; n < N; ++n) {
        stored[n] = {args.weight.bytes + (tile + n) * args.weight.tile_bytes, g};
        stored[n].announce();
      }
      if constexpr (open) {
        constexpr int kM = kSums == 1 ? kOpenRows : kOpenRowsOfHalves;
        for (int n = 0; n < N; ++n) opened[n].open(stored[n], blocks);
        add_group_to_rows<OpenGroup<kSums, Format::kHasMinimum>, kM, N>(args, opened, g, blocks, Format::kBias, row, end,
                                                                       acc);
      } else {
        add_group_to_rows<Stored, kStoredRows, N>(args, stored, g, blocks, Format::kBias, row, end, acc);
      }
    }
    store_rows<N>(args, tile, row, end, acc);
  }
}

template <class Format>
static void k_quant_matmul(const MatmulArgs& args, int64_t tile, int64_t tile_end, int64_t row, int64_t row_end) {
  if (row_end - row < kRowsWorthOpening) {
    for (; tile < tile_end; ++tile) k_quant_tiles<Format, 1, false>(args, tile, row, row_end);
    return;
  }
  for (; tile + kOpenTiles <= tile_end; tile += kOpenTiles) {
    k_quant_tiles<Format, kOpenTiles, true>(args, tile, row, row_end);
  }
  for (; tile < tile_end; ++tile) k_quant_tiles<Format, 1, true>(args, tile, row, row_end);
}

}  // namespace kvw::KVW_ISA
