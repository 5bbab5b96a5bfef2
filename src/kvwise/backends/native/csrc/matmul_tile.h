// What all matmul micro-tiles share: their sizes, and how a finished one is written.
#pragma once

#include "kernel_table.h"
#include "vec.h"

namespace kvw::KVW_ISA {

// Micro-tiles: as many accumulators as the registers hold besides weights and activations. Quantized ones need two
// accumulators each, integer and float.
#if defined(KVW_ISA_AVX512)
constexpr int kQuantRows = 6, kQuantTiles = 2, kFloatRows = 6, kFloatTiles = 4, kUnpackedRows = 6;
#elif defined(KVW_ISA_AVX2)
constexpr int kQuantRows = 2, kQuantTiles = 1, kFloatRows = 5, kFloatTiles = 1, kUnpackedRows = 1;
#elif defined(KVW_ISA_NEON)
constexpr int kQuantRows = 2, kQuantTiles = 1, kFloatRows = 6, kFloatTiles = 1, kUnpackedRows = 1;
#else
constexpr int kQuantRows = 1, kQuantTiles = 1, kFloatRows = 1, kFloatTiles = 1, kUnpackedRows = 1;
#endif

template <int M, int N>
KVW_INLINE void store_tile(const MatmulArgs& args, int64_t tile, int64_t row, const F32x16 (&acc)[M][N]) {
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
    const int64_t first = (tile + n) * kLanes;
    const int lanes = args.weight.outputs - first < kLanes ? static_cast<int>(args.weight.outputs - first) : kLanes;
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      float* out = reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(args.out) + (row + m) * args.out_stride) + first;
      F32x16 y = acc[m][n];
      if (args.bias) y = add(y, load_n(args.bias + first, lanes));
      if (lanes == kLanes) {
        store(out, y);
      } else {
        store_n(out, y, lanes);
      }
    }
  }
}

}  // namespace kvw::KVW_ISA
