// Micro-tiles of weights with integer kernels on quantized activations: exact integers inside a block of 32 inputs,
// then one multiply-add per block.
#pragma once

#include "dot.h"
#include "matmul_tile.h"

namespace kvw::KVW_ISA {

struct Q8_0 {
  static constexpr int32_t kBias = kByteBias;
  static constexpr bool kHasMinimum = false;
  static constexpr int kQuads = 8;  // 64-byte loads per block
  static const uint8_t* scales(const uint8_t* tile, int64_t b) { return tile + (b >> 1) * 1088 + (b & 1) * 32; }
  static const uint8_t* bytes(const uint8_t* tile, int64_t b) { return tile + (b >> 1) * 1088 + 64 + (b & 1) * 512; }
};
struct Q4_0 {
  static constexpr int32_t kBias = 8;
  static constexpr bool kHasMinimum = false;
  static constexpr int kQuads = 4;
  static const uint8_t* scales(const uint8_t* tile, int64_t b) { return tile + (b >> 1) * 576 + (b & 1) * 32; }
  static const uint8_t* bytes(const uint8_t* tile, int64_t b) { return tile + (b >> 1) * 576 + 64 + (b & 1) * 256; }
};
struct Q4_1 {
  static constexpr int32_t kBias = 0;
  static constexpr bool kHasMinimum = true;
  static constexpr int kQuads = 4;
  static const uint8_t* scales(const uint8_t* tile, int64_t b) { return tile + b * 320; }
  static const uint8_t* bytes(const uint8_t* tile, int64_t b) { return tile + b * 320 + 64; }
};

// `ahead`: bytes to what the tiles after these begin with; asked for as these are read. 0: nothing.
template <class Format, int M, int N>
KVW_INLINE void dot_block(const uint8_t* const (&weight)[N], int64_t b, const int8_t* const (&x)[M],
                          I32x16 (&sum)[M][N], size_t ahead) {
  const uint8_t* bytes[N];
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) bytes[n] = Format::bytes(weight[n], b);
#pragma GCC unroll 8
  for (int j = 0; j < Format::kQuads; ++j) {
    Bytes64 w[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      w[n] = load_bytes(bytes[n] + 64 * j);
      if (ahead) __builtin_prefetch(bytes[n] + 64 * j + ahead, 0, 2);
    }
    if constexpr (Format::kQuads == 8) {
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const Quad quad = load_quad(x[m] + 32 * b + 4 * j);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) dot_bytes(sum[m][n], w[n], quad);
      }
    } else {
      Bytes64 low[N], high[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        low[n] = low_nibbles(w[n]);
        high[n] = high_nibbles(w[n]);
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const Quad first = load_quad(x[m] + 32 * b + 4 * j), second = load_quad(x[m] + 32 * b + 4 * j + 16);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          dot_nibbles(sum[m][n], low[n], first);
          dot_nibbles(sum[m][n], high[n], second);
        }
      }
    }
  }
}

// M rows from `row`, N tiles from `tile`. `first_time`: these tiles are read for the first time, so the next ones are
// fetched into the second-level cache meanwhile; the hardware does not see that N streams jump N tiles ahead.
template <class Format, int M, int N, bool first_time>
static void quantized_tile(const MatmulArgs& args, int64_t tile, int64_t row) {
  constexpr int kChunk = 16;  // blocks whose per-row terms are prepared at once: one vector of them
  const int64_t inputs = args.weight.inputs, blocks = inputs / kQ8Block;
  const uint8_t* weight[N];
  const int8_t* x[M];
  F32x16 acc[M][N];
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) weight[n] = args.weight.bytes + (tile + n) * args.weight.tile_bytes;
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    x[m] = reinterpret_cast<const int8_t*>(args.x + (row + m) * args.x_stride);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) acc[m][n] = zero();
  }
  alignas(64) int32_t start[M][kChunk];  // what the integer sums start at: -kBias · Σ x
  alignas(64) float scale[M][kChunk];    // of x
  alignas(64) float shift[M][kChunk];    // scale · Σ x, for the minimum
  for (int64_t first = 0; first < blocks; first += kChunk) {
    const int count = blocks - first < kChunk ? static_cast<int>(blocks - first) : kChunk;
    for (int m = 0; m < M; ++m) {
      const F32x16 d = load_n(reinterpret_cast<const float*>(x[m] + inputs) + first, count);
      const I32x16 halves = load_half_sums(x[m] + inputs + 4 * blocks + 4 * first, count);
      const I32x16 sums = add(first_half(halves), second_half(halves));
      store(scale[m], d);
      if constexpr (Format::kBias != 0) store_i32(start[m], mul(sums, set1_i32(-Format::kBias)));
      if constexpr (Format::kHasMinimum) store(shift[m], mul(d, to_f32(sums)));
    }
    for (int i = 0; i < count; ++i) {
      I32x16 sum[M][N];
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) sum[m][n] = set1_i32(Format::kBias != 0 ? start[m][i] : 0);
      }
      dot_block<Format, M, N>(weight, first + i, x, sum, first_time ? N * args.weight.tile_bytes : 0);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const auto* scales = reinterpret_cast<const uint16_t*>(Format::scales(weight[n], first + i));
        const F32x16 d = load_f16(scales);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) acc[m][n] = fma(to_f32(sum[m][n]), mul(d, set1(scale[m][i])), acc[m][n]);
        if constexpr (Format::kHasMinimum) {
          const F32x16 minimum = load_f16(scales + kLanes);
#pragma GCC unroll 16
          for (int m = 0; m < M; ++m) acc[m][n] = fma(minimum, set1(shift[m][i]), acc[m][n]);
        }
      }
    }
  }
  store_tile<M, N>(args, tile, row, acc);
}

template <class Format>
struct Quantized {
  static constexpr int kRows = kQuantRows, kTiles = kQuantTiles;
  // For so few rows memory is the limit, and one tile after the other is one stream for the hardware to follow.
  static constexpr int kStreamRows = kQuantRows - 1;
  template <int M, int N, bool first_time>
  static void run(const MatmulArgs& args, int64_t tile, int64_t row) {
    quantized_tile<Format, M, N, first_time>(args, tile, row);
  }
};

}  // namespace kvw::KVW_ISA
