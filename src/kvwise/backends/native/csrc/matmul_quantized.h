// Micro-tiles of weights with integer kernels on quantized activations: exact integers over a group of inputs that
// shares scales, then one or two multiply-adds for the group.
//
// A Format says where the bytes lie (layout.h) and how a group ends:
//   kBias         what the stored integers are above the weights
//   kQuads        64-byte loads per block of 32 inputs: 8 for bytes, 4 for nibbles
//   kGroupBlocks  blocks of 32 inputs that share scales; activations for more than one are quantized in groups of 128
//   kHasMinimum   a group has a minimum beside its scale
//   kRowScales    one float32 scale per output at the tile's beginning, applied at the end
#pragma once

#include "dot.h"
#include "matmul_tile.h"

namespace kvw::KVW_ISA {

struct OneBlockGroups {
  static constexpr int kGroupBlocks = 1;
  static constexpr bool kHasMinimum = false, kRowScales = false;
};
struct Q8_0 : OneBlockGroups {
  static constexpr int32_t kBias = kByteBias;
  static constexpr int kQuads = 8;
  static const uint8_t* scales(const uint8_t* tile, int64_t b) { return tile + (b >> 1) * 1088 + (b & 1) * 32; }
  static const uint8_t* bytes(const uint8_t* tile, int64_t b) { return tile + (b >> 1) * 1088 + 64 + (b & 1) * 512; }
};
struct Q4_0 : OneBlockGroups {
  static constexpr int32_t kBias = 8;
  static constexpr int kQuads = 4;
  static const uint8_t* scales(const uint8_t* tile, int64_t b) { return tile + (b >> 1) * 576 + (b & 1) * 32; }
  static const uint8_t* bytes(const uint8_t* tile, int64_t b) { return tile + (b >> 1) * 576 + 64 + (b & 1) * 256; }
};
struct Q4_1 : OneBlockGroups {
  static constexpr int32_t kBias = 0;
  static constexpr bool kHasMinimum = true;
  static constexpr int kQuads = 4;
  static const uint8_t* scales(const uint8_t* tile, int64_t b) { return tile + b * 320; }
  static const uint8_t* bytes(const uint8_t* tile, int64_t b) { return tile + b * 320 + 64; }
};
struct I8 {
  static constexpr int32_t kBias = kByteBias;
  static constexpr bool kHasMinimum = false, kRowScales = true;
  static constexpr int kQuads = 8, kGroupBlocks = 4;
  static const uint8_t* scales(const uint8_t* tile, int64_t) { return tile; }
  static const uint8_t* bytes(const uint8_t* tile, int64_t b) { return tile + 64 + b * 512; }
};
template <int group>
struct I4 {
  static constexpr int32_t kBias = 8;
  static constexpr bool kHasMinimum = false, kRowScales = false;
  static constexpr int kQuads = 4, kGroupBlocks = group / kQ8Block;
  static constexpr int64_t kPairBytes = 64 + 2 * 8 * group;
  static const uint8_t* scales(const uint8_t* tile, int64_t b) {
    const int64_t g = b / kGroupBlocks;
    return tile + (g >> 1) * kPairBytes + (g & 1) * 32;
  }
  static const uint8_t* bytes(const uint8_t* tile, int64_t b) {
    return tile + b / (2 * kGroupBlocks) * kPairBytes + 64 + b % (2 * kGroupBlocks) * 256;
  }
};

// sum[m][n] += block b of tile n · block b of row m.
template <class Format, Fetch fetch, int M, int N>
KVW_INLINE void dot_block(const uint8_t* const (&weight)[N], int64_t b, const int8_t* const (&x)[M],
                          I32x16 (&sum)[M][N], const Ahead& ahead) {
  const uint8_t* bytes[N];
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) bytes[n] = Format::bytes(weight[n], b);
#pragma GCC unroll 8
  for (int j = 0; j < Format::kQuads; ++j) {
    Bytes64 w[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      w[n] = load_bytes(bytes[n] + 64 * j);
      fetch_ahead<fetch>(bytes[n] + 64 * j, j, ahead);
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

// What the rows of a micro-tile bring to each of 16 blocks from `first` on, where groups are single blocks.
template <class Format, int M>
struct BlockTerms {
  alignas(64) int32_t start[M][16];  // what the integer sums start at: -kBias · Σ x
  alignas(64) float scale[M][16];    // of x
  alignas(64) float shift[M][16];    // scale · Σ x, for the minimum

  KVW_MEMBER void prepare(const int8_t* const (&x)[M], int64_t inputs, int64_t blocks, int64_t first) {
    const int count = blocks - first < 16 ? static_cast<int>(blocks - first) : 16;
    for (int m = 0; m < M; ++m) {
      const int8_t* scales = x[m] + inputs + 4 * first;
      const F32x16 d = load_n(reinterpret_cast<const float*>(scales), count);
      const I32x16 halves = load_half_sums(scales + 4 * blocks, count);
      const I32x16 total = add(first_half(halves), second_half(halves));
      store(scale[m], d);
      if constexpr (Format::kBias != 0) store_i32(start[m], mul(total, set1_i32(-Format::kBias)));
      if constexpr (Format::kHasMinimum) store(shift[m], mul(d, to_f32(total)));
    }
  }
};

// acc += all groups, each a single block.
template <class Format, Fetch fetch, int M, int N, class Acc>
KVW_INLINE void add_blocks(const uint8_t* const (&weight)[N], const int8_t* const (&x)[M], int64_t inputs,
                           Acc (&acc)[M][N], const Ahead& ahead) {
  const int64_t blocks = inputs / kQ8Block;
  BlockTerms<Format, M> terms;
  for (int64_t first = 0; first < blocks; first += 16) {
    const int count = blocks - first < 16 ? static_cast<int>(blocks - first) : 16;
    terms.prepare(x, inputs, blocks, first);
    for (int i = 0; i < count; ++i) {
      I32x16 sum[M][N];
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const I32x16 start = set1_i32(Format::kBias != 0 ? terms.start[m][i] : 0);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) sum[m][n] = start;
      }
      dot_block<Format, fetch>(weight, first + i, x, sum, ahead);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const auto* scales = reinterpret_cast<const uint16_t*>(Format::scales(weight[n], first + i));
        const F32x16 d = load_f16(scales);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          assign(acc[m][n], fma(to_f32(sum[m][n]), mul(d, set1(terms.scale[m][i])), value_of(acc[m][n])));
        }
        if constexpr (Format::kHasMinimum) {
          const F32x16 minimum = load_f16(scales + kLanes);
#pragma GCC unroll 16
          for (int m = 0; m < M; ++m) {
            assign(acc[m][n], fma(minimum, set1(terms.shift[m][i]), value_of(acc[m][n])));
          }
        }
      }
    }
  }
}

KVW_INLINE int32_t word_at(const int8_t* words, int64_t i) {
  int32_t word;
  std::memcpy(&word, words + 4 * i, sizeof word);
  return word;
}

// acc += all groups of several blocks; those of an i8 tile still lack their outputs' scale.
template <class Format, Fetch fetch, int M, int N, class Acc>
KVW_INLINE void add_groups(const uint8_t* const (&weight)[N], const int8_t* const (&x)[M], int64_t inputs,
                           Acc (&acc)[M][N], const Ahead& ahead) {
  // The integer sums of a group as one chain of dependent steps would leave few rows waiting for each other.
  constexpr bool kShortChains = M * N <= 4;
  constexpr int kGroup = Format::kGroupBlocks;
  const int64_t blocks = inputs / kQ8Block;
  for (int64_t first = 0; first < blocks; first += kGroup) {
    const int64_t end = first + kGroup < blocks ? first + kGroup : blocks;
    I32x16 sum[M][N];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const int32_t total = word_at(x[m] + inputs + 4 * blocks, kGroup == 4 ? first : first + 1 - (first >> 1 & 1));
      const I32x16 start = set1_i32(-Format::kBias * total);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sum[m][n] = start;
    }
    for (int64_t b = first; b < end; ++b) {
      if constexpr (kShortChains) {
        I32x16 part[M][N];
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
          for (int n = 0; n < N; ++n) part[m][n] = set1_i32(0);
        }
        dot_block<Format, fetch>(weight, b, x, part, ahead);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
          for (int n = 0; n < N; ++n) sum[m][n] = add(sum[m][n], part[m][n]);
        }
      } else {
        dot_block<Format, fetch>(weight, b, x, sum, ahead);
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      F32x16 d;
      if constexpr (!Format::kRowScales) {
        d = load_f16(reinterpret_cast<const uint16_t*>(Format::scales(weight[n], first)));
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        F32x16 scale = set1(reinterpret_cast<const float*>(x[m] + inputs)[first]);
        if constexpr (!Format::kRowScales) scale = mul(d, scale);
        assign(acc[m][n], fma(to_f32(sum[m][n]), scale, value_of(acc[m][n])));
      }
    }
  }
}

// M rows from `row`, N tiles from `tile`.
template <class Format, int M, int N, Fetch fetch>
static void quantized_tile(const MatmulArgs& args, int64_t tile, int64_t row, const Ahead& ahead) {
  const int64_t inputs = args.weight.inputs;
  const uint8_t* weight[N];
  const int8_t* x[M];
  Accumulator<M, N> acc[M][N];
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) weight[n] = args.weight.bytes + (tile + n) * args.weight.tile_bytes;
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    x[m] = reinterpret_cast<const int8_t*>(args.x + (row + m) * args.x_stride);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) assign(acc[m][n], zero());
  }
  if constexpr (N > 1) fetch_outputs<M>(args, tile, row);
  if constexpr (Format::kGroupBlocks == 1) {
    add_blocks<Format, fetch>(weight, x, inputs, acc, ahead);
  } else {
    add_groups<Format, fetch>(weight, x, inputs, acc, ahead);
  }
  if constexpr (Format::kRowScales) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const F32x16 d = load(reinterpret_cast<const float*>(Format::scales(weight[n], 0)));
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) assign(acc[m][n], mul(value_of(acc[m][n]), d));
    }
  }
  store_tile<M, N>(args, tile, row, acc);
}

template <class Format>
struct Quantized {
  static constexpr int kRows = kQuantRows, kTiles = kQuantTiles;
  // A group's end costs little where it is long: then micro-tiles of two tiles overlap memory with arithmetic best.
  static constexpr int kStreamRows = Format::kGroupBlocks > 1 ? kQuantGroupStreamRows : kQuantStreamRows;
  template <int M, int N, Fetch fetch>
  static void run(const MatmulArgs& args, int64_t tile, int64_t row, const Ahead& ahead) {
    quantized_tile<Format, M, N, fetch>(args, tile, row, ahead);
  }
};

}  // namespace kvw::KVW_ISA
