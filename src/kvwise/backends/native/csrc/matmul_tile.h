// What all matmul micro-tiles share: their sizes, what they ask memory for in advance, how a finished one is written.
#pragma once

#include "kernel_table.h"
#include "vec.h"

namespace kvw::KVW_ISA {

// Micro-tiles: as many accumulators as the registers hold besides weights and activations. Quantized ones need two
// accumulators each, integer and float. Up to kQuantStreamRows rows go through one tile after the other, as one stream
// of weights for the hardware to follow.
#if defined(KVW_ISA_AVX512)
constexpr int kQuantRows = 6, kQuantTiles = 2, kQuantStreamRows = 16, kQuantGroupStreamRows = 4;
constexpr int kFloatRows = 6, kFloatTiles = 4, kUnpackedRows = 6, kRegisters = 32;
#elif defined(KVW_ISA_AVX2)
constexpr int kQuantRows = 2, kQuantTiles = 1, kQuantStreamRows = 2, kQuantGroupStreamRows = 2;
constexpr int kFloatRows = 5, kFloatTiles = 1, kUnpackedRows = 1, kRegisters = 8;
#elif defined(KVW_ISA_NEON)
constexpr int kQuantRows = 2, kQuantTiles = 1, kQuantStreamRows = 2, kQuantGroupStreamRows = 2;
constexpr int kFloatRows = 6, kFloatTiles = 1, kUnpackedRows = 1, kRegisters = 8;
#else
constexpr int kQuantRows = 2, kQuantTiles = 1, kQuantStreamRows = 2, kQuantGroupStreamRows = 2;
constexpr int kFloatRows = 1, kFloatTiles = 1, kUnpackedRows = 1, kRegisters = 4;
#endif

// What a micro-tile asks memory for while it computes.
//   none   nothing: everything is in a cache
//   near   the lines shortly after those it reads: one long stream that the arithmetic would hold up
//   next   the same lines of the tiles after these, into the second-level cache: the hardware does not see that N
//          streams jump N tiles ahead. Where several passes of rows read the same tiles, each asks for its share.
enum class Fetch { none, near, next };
struct Ahead {
  size_t bytes = 0;      // to the tiles after these
  uint32_t lines = 255;  // which of a block's eight lines
};
constexpr size_t kNearBytes = 2048;

template <Fetch fetch>
KVW_INLINE void fetch_ahead(const uint8_t* read, int line, const Ahead& ahead) {
  if constexpr (fetch == Fetch::near) __builtin_prefetch(read + kNearBytes, 0, 3);
  if constexpr (fetch == Fetch::next) {
    if (ahead.lines >> line & 1) __builtin_prefetch(read + ahead.bytes, 0, 2);
  }
}

// A float32 accumulator: in a register, or in the first-level cache where the integer ones need all registers.
struct CachedF32x16 {
  alignas(64) float lane[kLanes];
};
KVW_INLINE F32x16 value_of(F32x16 x) { return x; }
KVW_INLINE F32x16 value_of(const CachedF32x16& x) { return load(x.lane); }
KVW_INLINE void assign(F32x16& x, F32x16 value) { x = value; }
KVW_INLINE void assign(CachedF32x16& x, F32x16 value) { store(x.lane, value); }

template <bool in_register>
struct AccumulatorOf {
  using type = F32x16;
};
template <>
struct AccumulatorOf<false> {
  using type = CachedF32x16;
};
template <int M, int N>
using Accumulator = typename AccumulatorOf<(2 * M * N < kRegisters - 4)>::type;

// Ask for the lines that M rows will be written to, one tile's after the other: far apart, and in no cache yet.
template <int M>
KVW_INLINE void fetch_outputs(const MatmulArgs& args, int64_t tile, int64_t row) {
  const bool twice = args.activations == Activations::q8x2;
  const uint8_t* out = reinterpret_cast<const uint8_t*>(args.out + tile * kLanes);
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) __builtin_prefetch(out + (twice ? (row + m) / 2 : row + m) * args.out_stride, 1, 3);
}

// y of one row and tile, with the bias.
KVW_INLINE void store_outputs(const MatmulArgs& args, int64_t tile, int64_t row, F32x16 y) {
  const int64_t first = tile * kLanes, left = args.weight.outputs - first;
  float* out = reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(args.out) + row * args.out_stride) + first;
  if (left >= kLanes) {
    store(out, args.bias ? add(y, load(args.bias + first)) : y);
  } else {
    const int lanes = static_cast<int>(left);
    store_n(out, args.bias ? add(y, load_n(args.bias + first, lanes)) : y, lanes);
  }
}

// Rows `row` .. `row + M` are those of x: where each token has two (Activations::q8x2), their results are added.
template <int M, int N, class Acc>
KVW_INLINE void store_tile(const MatmulArgs& args, int64_t tile, int64_t row, const Acc (&acc)[M][N]) {
  if (args.activations == Activations::q8x2) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 16
      for (int m = 0; m + 1 < M; m += 2) {
        store_outputs(args, tile + n, (row + m) / 2, add(value_of(acc[m][n]), value_of(acc[m + 1][n])));
      }
    }
  } else {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) store_outputs(args, tile + n, row + m, value_of(acc[m][n]));
    }
  }
}

}  // namespace kvw::KVW_ISA
