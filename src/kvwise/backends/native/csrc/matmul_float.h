// Micro-tiles of float32, float16 and bfloat16 weights. On float32 activations: one multiply-add per input, in sequence.
// On bfloat16 ones: one step per pair of inputs.
#pragma once

#include "dot.h"
#include "matmul_tile.h"

namespace kvw::KVW_ISA {

// Input 2i or 2i + 1 of all lanes, by parity: from pair i of a tile.
struct F32Pairs {
  static constexpr int kBytes = 8 * kLanes;
  template <int parity>
  static F32x16 input(const uint8_t* pair) {
    return load(reinterpret_cast<const float*>(pair) + parity * kLanes);
  }
};
struct F16Pairs {
  static constexpr int kBytes = 4 * kLanes;
  template <int parity>
  static F32x16 input(const uint8_t* pair) {
    return load(reinterpret_cast<const F16*>(pair) + parity * kLanes);
  }
};
struct BF16Pairs {
  static constexpr int kBytes = 4 * kLanes;
  template <int parity>
  static F32x16 input(const uint8_t* pair) {
    const I32x16 both = load_i32(reinterpret_cast<const int32_t*>(pair));
    return as_f32(parity == 0 ? shl<16>(both) : bit_and(both, set1_i32(static_cast<int32_t>(0xFFFF0000u))));
  }
};

// acc += weight · x for one input of N tiles and M rows.
template <class Pairs, int parity, Fetch fetch, int M, int N>
KVW_INLINE void add_input(const uint8_t* const (&weight)[N], const float* const (&x)[M], int64_t k, F32x16 (&acc)[M][N],
                          const Ahead& ahead) {
  F32x16 w[N];
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
    const uint8_t* pair = weight[n] + (k >> 1) * Pairs::kBytes;
    w[n] = Pairs::template input<parity>(pair);
    if (parity == 0 || Pairs::kBytes > 64) fetch_ahead<fetch>(pair + parity * 64, static_cast<int>(k & 7), ahead);
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    const F32x16 value = set1(x[m][k]);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) acc[m][n] = fma(w[n], value, acc[m][n]);
  }
}

template <class Pairs>
struct Floating {
  static constexpr int kRows = kFloatRows, kTiles = kFloatTiles;
  static constexpr int kStreamRows = 0;  // four chains of multiply-adds are needed to keep up with memory

  template <int M, int N, Fetch fetch>
  static void run(const MatmulArgs& args, int64_t tile, int64_t row, const Ahead& ahead) {
    const uint8_t* weight[N];
    const float* x[M];
    F32x16 acc[M][N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) weight[n] = args.weight.bytes + (tile + n) * args.weight.tile_bytes;
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      x[m] = reinterpret_cast<const float*>(args.x + (row + m) * args.x_stride);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) acc[m][n] = zero();
    }
    const int64_t inputs = args.weight.inputs;
    for (int64_t k = 0; k + 1 < inputs; k += 2) {
      add_input<Pairs, 0, fetch>(weight, x, k, acc, ahead);
      add_input<Pairs, 1, fetch>(weight, x, k + 1, acc, ahead);
    }
    if (inputs & 1) add_input<Pairs, 0, Fetch::none>(weight, x, inputs - 1, acc, ahead);
    store_tile<M, N>(args, tile, row, acc);
  }
};

#if defined(KVW_ISA_AVX512)
// bf16 weights on bf16 activations.
struct PairProducts {
  static constexpr int kRows = kFloatRows, kTiles = kFloatTiles;
  static constexpr int kStreamRows = 0;

  template <int M, int N, Fetch fetch>
  static void run(const MatmulArgs& args, int64_t tile, int64_t row, const Ahead& ahead) {
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
    if constexpr (M > 1) fetch_outputs<M>(args, tile, row);
    const int64_t pairs = (args.weight.inputs + 1) / 2;
    for (int64_t i = 0; i < pairs; ++i) {
      Bytes64 w[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        w[n] = load_bytes(weight[n] + i * 4 * kLanes);
        fetch_ahead<fetch>(weight[n] + i * 4 * kLanes, static_cast<int>(i & 7), ahead);
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const Quad pair = load_quad(x[m] + 4 * i);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) dot_pairs(acc[m][n], w[n], pair);
      }
    }
    store_tile<M, N>(args, tile, row, acc);
  }
};
#endif

}  // namespace kvw::KVW_ISA
