// Weights of any block type on float32 activations: a block of 16 output rows is unpacked to float32 once, for many
// rows of activations.
#pragma once

#include "matmul_tile.h"
#include "unpack.inl"

namespace kvw::KVW_ISA {

// acc += weight · x over one block: input k goes to sum k mod 4, which are added pairwise at the block's end. Four
// chains hide the latency of the multiply-add even for one row.
template <int K, int M>
KVW_INLINE void unpacked_rows(Floats weight, const float* x, size_t x_stride, float (*acc)[kLanes]) {
  const float* row[M];
  F32x16 sum[M][4];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    row[m] = reinterpret_cast<const float*>(reinterpret_cast<const uint8_t*>(x) + m * x_stride);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sum[m][i] = zero();
  }
  for (int k = 0; k < K; k += 4) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const F32x16 w = load(weight[k + i]);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) sum[m][i] = fma(w, set1(row[m][k + i]), sum[m][i]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    store(acc[m], add(load(acc[m]), add(add(sum[m][0], sum[m][1]), add(sum[m][2], sum[m][3]))));
  }
}

template <int K, int M>
KVW_INLINE void last_unpacked_rows(Floats weight, const float* x, size_t x_stride, float (*acc)[kLanes], int64_t rows) {
  if (rows == M) {
    unpacked_rows<K, M>(weight, x, x_stride, acc);
  } else if constexpr (M > 1) {
    last_unpacked_rows<K, M - 1>(weight, x, x_stride, acc, rows);
  }
}

template <WeightType type>
static void unpacking_matmul(const MatmulArgs& args, int64_t tile, int64_t tile_end, int64_t row_begin,
                             int64_t row_end) {
  using Block = TileBlock<type>;
  constexpr int kK = Block::kElements;
  constexpr int kChunk = 96;  // rows per unpacking: their accumulators stay in L1 beside the block
  alignas(64) float weight[kK][kLanes];
  alignas(64) float acc[kChunk][kLanes];
  for (; tile < tile_end; ++tile) {
    const uint8_t* stored = args.weight.bytes + tile * args.weight.tile_bytes;
    for (int64_t first = row_begin; first < row_end; first += kChunk) {
      const int64_t rows = row_end - first < kChunk ? row_end - first : kChunk;
      std::memset(acc, 0, sizeof(acc[0]) * rows);
      for (int64_t b = 0; b < args.weight.inputs / kK; ++b) {
        Block::unpack(stored, b, weight);
        const uint8_t* x = args.x + first * args.x_stride + b * kK * sizeof(float);
        auto row_of = [&](int64_t r) { return reinterpret_cast<const float*>(x + r * args.x_stride); };
        int64_t r = 0;
        for (; r + kUnpackedRows <= rows; r += kUnpackedRows) {
          unpacked_rows<kK, kUnpackedRows>(weight, row_of(r), args.x_stride, acc + r);
        }
        if constexpr (kUnpackedRows > 1) {
          last_unpacked_rows<kK, kUnpackedRows - 1>(weight, row_of(r), args.x_stride, acc + r, rows - r);
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        const F32x16 one[1][1] = {{load(acc[r])}};
        store_tile<1, 1>(args, tile, first + r, one);
      }
    }
  }
}

}  // namespace kvw::KVW_ISA
