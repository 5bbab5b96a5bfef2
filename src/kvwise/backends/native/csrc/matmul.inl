// out = x · weightᵀ + bias over interleaved weights (layout.h): lane = output, so that nothing is summed across
// lanes and one order of operations serves one row and a thousand.
//
// Order, per output and row: blocks of the inputs in sequence; inside a block exact integers; then one fused
// multiply-add into a float32 accumulator. Float weights: one fused multiply-add per input, in sequence. Unpacked
// types: see unpacked_rows. A micro-tile of M rows and N tiles only decides how many accumulators are live at once.
#pragma once

#include "matmul_float.h"
#include "matmul_quantized.h"
#include "matmul_unpacked.h"

namespace kvw::KVW_ISA {

// ---- the order of micro-tiles ----

// The rows left over, fewer than M + 1, in one micro-tile.
template <class Kernel, int M, int N>
KVW_INLINE void last_rows(const MatmulArgs& args, int64_t tile, int64_t row, int64_t rows) {
  if (rows == M) {
    Kernel::template run<M, N, false>(args, tile, row);
  } else if constexpr (M > 1) {
    last_rows<Kernel, M - 1, N>(args, tile, row, rows);
  }
}

template <class Kernel, int N>
KVW_INLINE void all_rows(const MatmulArgs& args, int64_t tile, int64_t row, int64_t row_end) {
  if (row + Kernel::kRows <= row_end) {
    Kernel::template run<Kernel::kRows, N, true>(args, tile, row);
    row += Kernel::kRows;
  }
  for (; row + Kernel::kRows <= row_end; row += Kernel::kRows) {
    Kernel::template run<Kernel::kRows, N, false>(args, tile, row);
  }
  if constexpr (Kernel::kRows > 1) last_rows<Kernel, Kernel::kRows - 1, N>(args, tile, row, row_end - row);
}

template <class Kernel>
static void tiled_matmul(const MatmulArgs& args, int64_t tile, int64_t tile_end, int64_t row, int64_t row_end) {
  if (row_end - row > Kernel::kStreamRows) {
    for (; tile + Kernel::kTiles <= tile_end; tile += Kernel::kTiles) {
      all_rows<Kernel, Kernel::kTiles>(args, tile, row, row_end);
    }
  }
  for (; tile < tile_end; ++tile) all_rows<Kernel, 1>(args, tile, row, row_end);
}

// ---- by type ----

// The types that KVW_EACH_BLOCK_TYPE(of) names are stored in blocks of several elements.
#define KVW_EACH_BLOCK_TYPE(of) \
  of(q8_0) of(q4_0) of(q4_1) of(q5_0) of(q5_1) of(q2_k) of(q3_k) of(q4_k) of(q5_k) of(q6_k)

static void matmul(const MatmulArgs& a, int64_t tile, int64_t tile_end, int64_t row, int64_t row_end) {
  if (a.q8_activations) {
    switch (a.weight.type) {
      case WeightType::q8_0: return tiled_matmul<Quantized<Q8_0>>(a, tile, tile_end, row, row_end);
      case WeightType::q4_0: return tiled_matmul<Quantized<Q4_0>>(a, tile, tile_end, row, row_end);
      case WeightType::q4_1: return tiled_matmul<Quantized<Q4_1>>(a, tile, tile_end, row, row_end);
      default: return;  // refused when the program was built
    }
  }
  switch (a.weight.type) {
    case WeightType::f32: return tiled_matmul<Floating<float>>(a, tile, tile_end, row, row_end);
    case WeightType::f16: return tiled_matmul<Floating<F16>>(a, tile, tile_end, row, row_end);
    case WeightType::bf16: return tiled_matmul<Floating<BF16>>(a, tile, tile_end, row, row_end);
#define KVW_UNPACKING(type) \
  case WeightType::type: return unpacking_matmul<WeightType::type>(a, tile, tile_end, row, row_end);
    KVW_EACH_BLOCK_TYPE(KVW_UNPACKING)
#undef KVW_UNPACKING
  }
}

// ---- lookup ----

// Block b of a tile to float32; returns its elements.
KVW_INLINE int unpack_block(const WeightMatrix& w, const uint8_t* tile, int64_t b, Floats out) {
  switch (w.type) {
    case WeightType::f32: store(out[0], load(reinterpret_cast<const float*>(tile) + b * kLanes)); return 1;
    case WeightType::f16: store(out[0], load(reinterpret_cast<const F16*>(tile) + b * kLanes)); return 1;
    case WeightType::bf16: store(out[0], load(reinterpret_cast<const BF16*>(tile) + b * kLanes)); return 1;
#define KVW_UNPACK(type)                               \
  case WeightType::type:                               \
    TileBlock<WeightType::type>::unpack(tile, b, out); \
    return TileBlock<WeightType::type>::kElements;
    KVW_EACH_BLOCK_TYPE(KVW_UNPACK)
#undef KVW_UNPACK
  }
  return 0;
}
#undef KVW_EACH_BLOCK_TYPE

static void embed_row(const WeightMatrix& table, int64_t row, float scale, float* out) {
  alignas(64) float block[256][kLanes];
  const uint8_t* tile = table.bytes + row / kLanes * table.tile_bytes;
  const int lane = static_cast<int>(row % kLanes);
  int64_t k = 0;
  for (int64_t b = 0; k < table.inputs; ++b) {
    const int elements = unpack_block(table, tile, b, block);
    for (int i = 0; i < elements; ++i) out[k + i] = scale * block[i][lane];
    k += elements;
  }
}

}  // namespace kvw::KVW_ISA
