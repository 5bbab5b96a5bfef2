// out = x · weightᵀ + bias over interleaved weights (layout.h): lane = output, so that nothing is summed across
// lanes and one order of operations serves one row and a thousand.
//
// Order, per output and row: blocks of the inputs in sequence; inside a block exact integers; then one fused
// multiply-add into a float32 accumulator. Float weights: one fused multiply-add per input, in sequence. Unpacked
// types: see unpacked_rows. A micro-tile of M rows and N tiles only decides how many accumulators are live at once.
#pragma once

#include "dot.h"
#include "kernel_table.h"
#include "unpack.inl"
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

// ---- weights that take quantized activations ----

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
      // Sums are integers of at most 32 · 127, so they pass through a float load unchanged and convert exactly.
      const I32x16 sums = as_i32(load_n(reinterpret_cast<const float*>(x[m] + inputs + 4 * blocks) + first, count));
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

// ---- float weights ----

template <class Element>
struct Floating {
  static constexpr int kRows = kFloatRows, kTiles = kFloatTiles;
  static constexpr int kStreamRows = 0;  // four chains of multiply-adds are needed to keep up with memory

  template <int M, int N, bool first_time>
  static void run(const MatmulArgs& args, int64_t tile, int64_t row) {
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
        if (first_time) __builtin_prefetch(weight[n] + k * kLanes + N * args.weight.tile_bytes / sizeof(Element), 0, 2);
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

// ---- float32 activations on any type: a block of 16 rows is unpacked to float32 once for many rows of x ----

// Block b of a tile, wherever the layout puts it.
template <WeightType type>
struct TileBlock {
  static constexpr int kElements = Unpack<type>::kElements;
  static void unpack(const uint8_t* tile, int64_t b, Floats out) {
    Unpack<type>::run(reinterpret_cast<Bytes>(tile + b * Unpack<type>::kBytes * kLanes), out);
  }
};
template <>
struct TileBlock<WeightType::q8_0> {
  static constexpr int kElements = 32;
  static void unpack(const uint8_t* tile, int64_t b, Floats out) {
    unpack_q8_0(Q8_0::scales(tile, b & ~int64_t{1}), b & 1, out);
  }
};
template <>
struct TileBlock<WeightType::q4_0> {
  static constexpr int kElements = 32;
  static void unpack(const uint8_t* tile, int64_t b, Floats out) {
    unpack_q4_0(Q4_0::scales(tile, b & ~int64_t{1}), b & 1, out);
  }
};
template <>
struct TileBlock<WeightType::q4_1> {
  static constexpr int kElements = 32;
  static void unpack(const uint8_t* tile, int64_t b, Floats out) { unpack_q4_1(Q4_1::scales(tile, b), out); }
};

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
