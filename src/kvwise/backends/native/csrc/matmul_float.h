// Micro-tiles of float32, float16 and bfloat16 weights on float32 activations: one multiply-add per input, in sequence.
#pragma once

#include "matmul_tile.h"

namespace kvw::KVW_ISA {

template <class Element>
struct Floating {
  static constexpr int kRows = kFloatRows, kTiles = kFloatTiles;
  static constexpr int kStreamRows = 0;  // four chains of multiply-adds are needed to keep up with memory

  template <int M, int N, Fetch fetch>
  static void run(const MatmulArgs& args, int64_t tile, int64_t row, const Ahead& ahead) {
    const Element* weight[N];
    const float* x[M];
    F32x16 acc[M][N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      weight[n] = reinterpret_cast<const Element*>(args.weight.bytes + (tile + n) * args.weight.tile_bytes);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      x[m] = reinterpret_cast<const float*>(args.x + (row + m) * args.x_stride);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) acc[m][n] = zero();
    }
    for (int64_t k = 0; k < args.weight.inputs; ++k) {
      F32x16 w[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        w[n] = load(weight[n] + k * kLanes);
        fetch_ahead<fetch>(reinterpret_cast<const uint8_t*>(weight[n] + k * kLanes), k & 7, ahead);
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const F32x16 value = set1(x[m][k]);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) acc[m][n] = fma(w[n], value, acc[m][n]);
      }
    }
    store_tile<M, N>(args, tile, row, acc);
  }
};

}  // namespace kvw::KVW_ISA
