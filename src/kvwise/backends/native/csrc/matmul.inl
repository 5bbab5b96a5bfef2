// out = x · weightᵀ + bias over interleaved weights (layout.h): lane = output, so that nothing is summed across
// lanes and one order of operations serves one row and a thousand.
//
// Order, per output and row: blocks of the inputs in sequence; inside a block exact integers; then one fused
// multiply-add into a float32 accumulator. Float weights: one fused multiply-add per input, in sequence. Unpacked
// types: see unpacked_rows. A micro-tile of M rows and N tiles only decides how many accumulators are live at once.
#pragma once

#include "matmul_float.h"
#include "matmul_k_quants.h"
#include "matmul_quantized.h"
#include "matmul_unpacked.h"

namespace kvw::KVW_ISA {

// ---- the order of micro-tiles ----

// `rows` of at most M rows in one micro-tile.
template <class Kernel, int M, int N, Fetch fetch>
KVW_INLINE void run_rows(const MatmulArgs& args, int64_t tile, int64_t row, int64_t rows, const Ahead& ahead) {
  if (rows == M) {
    Kernel::template run<M, N, fetch>(args, tile, row, ahead);
  } else if constexpr (M > 1) {
    run_rows<Kernel, M - 1, N, fetch>(args, tile, row, rows, ahead);
  }
}

// All rows in passes of about the same number, an even one where rows come in pairs. The first eight passes fetch the
// next tiles between them.
template <class Kernel, int N>
KVW_INLINE void all_rows(const MatmulArgs& args, int64_t tile, int64_t row, int64_t row_end) {
  constexpr int kM = Kernel::kRows;
  const int64_t passes = (row_end - row + kM - 1) / kM, sharers = passes < 8 ? passes : 8;
  const bool pairs = args.activations == Activations::q8x2;
  for (int64_t pass = 0; row < row_end; ++pass) {
    const int64_t left = row_end - row, share = (left + passes - pass - 1) / (passes - pass);
    const int64_t rows = pairs && share % 2 ? share + 1 : share;
    Ahead ahead{N * args.weight.tile_bytes, 0};
    for (int64_t line = pass; line < 8; line += sharers) ahead.lines |= 1u << line;
    if (ahead.lines != 0) {
      run_rows<Kernel, kM, N, Fetch::next>(args, tile, row, rows, ahead);
    } else {
      run_rows<Kernel, kM, N, Fetch::none>(args, tile, row, rows, ahead);
    }
    row += rows;
  }
}

// Few rows: one tile after the other. Very few wait for memory alone, and the hardware follows one long stream by itself
// better than when it is told; more rows keep it waiting.
template <class Kernel>
static void streamed_matmul(const MatmulArgs& args, int64_t tile, int64_t tile_end, int64_t row, int64_t row_end) {
  constexpr int kFew = Kernel::kStreamRows < 5 ? Kernel::kStreamRows : 5;
  const int64_t rows = row_end - row;
  const Ahead ahead{args.weight.tile_bytes};
  for (; tile < tile_end; ++tile) {
    if (rows <= kFew) {
      run_rows<Kernel, kFew, 1, Fetch::none>(args, tile, row, rows, ahead);
    } else if constexpr (Kernel::kStreamRows > kFew) {
      run_rows<Kernel, Kernel::kStreamRows, 1, Fetch::near>(args, tile, row, rows, ahead);
    }
  }
}

template <class Kernel>
static void tiled_matmul(const MatmulArgs& args, int64_t tile, int64_t tile_end, int64_t row, int64_t row_end) {
  if constexpr (Kernel::kStreamRows > 0) {
    if (row_end - row <= Kernel::kStreamRows) return streamed_matmul<Kernel>(args, tile, tile_end, row, row_end);
  }
  for (; tile + Kernel::kTiles <= tile_end; tile += Kernel::kTiles) {
    all_rows<Kernel, Kernel::kTiles>(args, tile, row, row_end);
  }
  for (; tile < tile_end; ++tile) all_rows<Kernel, 1>(args, tile, row, row_end);
}

// ---- by type ----

// The types that KVW_EACH_BLOCK_TYPE(of) names are stored in blocks of several elements.
#define KVW_EACH_BLOCK_TYPE(of) \
  of(q8_0) of(q4_0) of(q4_1) of(q5_0) of(q5_1) of(q2_k) of(q3_k) of(q4_k) of(q5_k) of(q6_k) \
  of(i8) of(i4_64) of(i4_128)

static void matmul_quantized(const MatmulArgs& a, int64_t tile, int64_t tile_end, int64_t row, int64_t row_end) {
  switch (a.weight.type) {
    case WeightType::q8_0: return tiled_matmul<Quantized<Q8_0>>(a, tile, tile_end, row, row_end);
    case WeightType::q4_0: return tiled_matmul<Quantized<Q4_0>>(a, tile, tile_end, row, row_end);
    case WeightType::q4_1: return tiled_matmul<Quantized<Q4_1>>(a, tile, tile_end, row, row_end);
    case WeightType::i8: return tiled_matmul<Quantized<I8>>(a, tile, tile_end, row, row_end);
    case WeightType::i4_64: return tiled_matmul<Quantized<I4<64>>>(a, tile, tile_end, row, row_end);
    case WeightType::i4_128: return tiled_matmul<Quantized<I4<128>>>(a, tile, tile_end, row, row_end);
    case WeightType::q5_0: return k_quant_matmul<Q5_0>(a, tile, tile_end, row, row_end);
    case WeightType::q5_1: return k_quant_matmul<Q5_1>(a, tile, tile_end, row, row_end);
    case WeightType::q2_k: return k_quant_matmul<Q2_K>(a, tile, tile_end, row, row_end);
    case WeightType::q3_k: return k_quant_matmul<Q3_K>(a, tile, tile_end, row, row_end);
    case WeightType::q4_k: return k_quant_matmul<Q4_K>(a, tile, tile_end, row, row_end);
    case WeightType::q5_k: return k_quant_matmul<Q5_K>(a, tile, tile_end, row, row_end);
    case WeightType::q6_k: return k_quant_matmul<Q6_K>(a, tile, tile_end, row, row_end);
    default: return;  // float weights: refused when the program was built
  }
}

static void matmul(const MatmulArgs& args, int64_t tile, int64_t tile_end, int64_t row, int64_t row_end) {
  MatmulArgs a = args;
  if (a.activations == Activations::q8) return matmul_quantized(a, tile, tile_end, row, row_end);
#if defined(KVW_ISA_AVX512)
  if (a.activations == Activations::bf16) return tiled_matmul<PairProducts>(a, tile, tile_end, row, row_end);
#endif
  if (a.activations == Activations::q8x2) {  // each token is two rows that lie one after the other
    a.x_stride /= 2;
    return matmul_quantized(a, tile, tile_end, 2 * row, 2 * row_end);
  }
  switch (a.weight.type) {
    case WeightType::f32: return tiled_matmul<Floating<F32Pairs>>(a, tile, tile_end, row, row_end);
    case WeightType::f16: return tiled_matmul<Floating<F16Pairs>>(a, tile, tile_end, row, row_end);
    case WeightType::bf16: return tiled_matmul<Floating<BF16Pairs>>(a, tile, tile_end, row, row_end);
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
    case WeightType::bf16: {
      const uint8_t* pair = tile + (b >> 1) * BF16Pairs::kBytes;
      store(out[0], b & 1 ? BF16Pairs::input<1>(pair) : BF16Pairs::input<0>(pair));
      return 1;
    }
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
