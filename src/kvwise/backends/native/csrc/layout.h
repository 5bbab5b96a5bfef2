// How weights lie in memory: 16 output rows interleaved, whatever the instruction set. Sizes and repacking.
//
// A matrix is a sequence of tiles; a tile is 16 output rows (lanes) over all inputs k. The last tile is padded with
// zero rows. Every tile starts on a cache line.
//
//   f32, f16         element [k][lane]
//
//   bf16             pair [k / 2][lane][k % 2]; an odd last one has a zero beside it
//
//   q8_0, q4_0       blocks of 32 inputs, in pairs, so that everything stays on cache lines; an odd last block
//                    leaves the second half of its scales unused
//        | f16 scale [2][lane]   64 B | bytes of block 2p | bytes of block 2p + 1 |
//
//   i4_64, i4_128    likewise, for groups of 64 or 128 inputs: the bytes of a group are those of its 4-bit blocks
//
//   i8               | f32 scale [lane]   64 B | bytes of all blocks of 32 inputs, as q8_0's |
//
//   q4_1             | f16 scale [lane], f16 minimum [lane]   64 B | bytes |          for each block
//
//        bytes of a q8_0 block  [k / 4][lane][k % 4], each w + 128                          8 · 64 B
//        bytes of a 4-bit block [quad 0..3][lane][4]: low nibble k = 4 · quad + i, high k + 16   4 · 64 B
//
//   all others       byte [j][lane] of the stored block, for each block: unpacked to float32 when used
//
// Block formats as stored: github.com/ggml-org/ggml, src/ggml-common.h.
#pragma once

#include "kernel_table.h"

namespace kvw {

struct BlockShape {
  int64_t elements;
  int64_t bytes;
};

constexpr BlockShape block_shape(WeightType type) {
  switch (type) {
    case WeightType::f32: return {1, 4};
    case WeightType::f16: return {1, 2};
    case WeightType::bf16: return {1, 2};
    case WeightType::q8_0: return {32, 34};
    case WeightType::q4_0: return {32, 18};
    case WeightType::q4_1: return {32, 20};
    case WeightType::q5_0: return {32, 22};
    case WeightType::q5_1: return {32, 24};
    case WeightType::q2_k: return {256, 84};
    case WeightType::q3_k: return {256, 110};
    case WeightType::q4_k: return {256, 144};
    case WeightType::q5_k: return {256, 176};
    case WeightType::q6_k: return {256, 210};
    case WeightType::i8: return {32, 32};
    case WeightType::i4_64: return {64, 34};
    case WeightType::i4_128: return {128, 66};
  }
  return {1, 0};
}

// Types of our own, made when a model is loaded; their activations share a scale over 128 inputs.
constexpr bool is_own(WeightType type) {
  return type == WeightType::i8 || type == WeightType::i4_64 || type == WeightType::i4_128;
}

// A row begins with this many bytes that belong to no block: the scale of an i8 row.
constexpr int64_t row_header_bytes(WeightType type) { return type == WeightType::i8 ? 4 : 0; }

// Types with integer kernels.
constexpr bool can_take_q8(WeightType type) {
  return type == WeightType::q8_0 || type == WeightType::q4_0 || type == WeightType::q4_1 || is_own(type);
}

// Bytes of one row as stored in a file.
constexpr int64_t stored_row_bytes(WeightType type, int64_t inputs) {
  return row_header_bytes(type) + inputs / block_shape(type).elements * block_shape(type).bytes;
}

// Bytes of a row of activations, and what it is by its bytes: all different where a type has kernels for it.
constexpr size_t row_bytes_of(Activations kind, int64_t width) {
  switch (kind) {
    case Activations::q8: return q8_row_bytes(width);
    case Activations::q8x2: return 2 * q8_row_bytes(width);
    case Activations::bf16: return sizeof(uint16_t) * (width + width % 2);
    case Activations::f32: break;
  }
  return sizeof(float) * width;
}
constexpr Activations activations_of(size_t row_bytes, WeightType type, int64_t width) {
  if (type == WeightType::bf16 && width > 1 && row_bytes == row_bytes_of(Activations::bf16, width)) return Activations::bf16;
  if (!can_take_q8(type)) return Activations::f32;
  if (row_bytes == row_bytes_of(Activations::q8, width)) return Activations::q8;
  return row_bytes == row_bytes_of(Activations::q8x2, width) ? Activations::q8x2 : Activations::f32;
}

constexpr int64_t tile_bytes(WeightType type, int64_t inputs) {
  const int64_t blocks = inputs / block_shape(type).elements;
  const bool paired = type == WeightType::q8_0 || type == WeightType::q4_0 || type == WeightType::i4_64 ||
                      type == WeightType::i4_128;
  const int64_t unused_scales = paired && blocks % 2 ? 2 * kLanes : 0;
  const int64_t bytes = kLanes * stored_row_bytes(type, inputs) + unused_scales;
  return (bytes + 63) / 64 * 64;
}

constexpr int64_t num_tiles(int64_t outputs) { return (outputs + kLanes - 1) / kLanes; }

// The stored rows of one tile. Where the matrix has no more rows, a row of zero bytes.
struct TileRows {
  const uint8_t* row[kLanes];
};

// Rows of tile `tile` of a whole matrix [outputs][row_bytes]; `zeros` is the row that padding reads.
inline TileRows rows_of_tile(const uint8_t* stored, int64_t outputs, int64_t row_bytes, int64_t tile,
                             const uint8_t* zeros) {
  TileRows rows;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int64_t row = tile * kLanes + lane;
    rows.row[lane] = row < outputs ? stored + row * row_bytes : zeros;
  }
  return rows;
}

// Fill one tile from its rows as stored: stored_row_bytes each.
void repack_tile(WeightType type, int64_t inputs, const TileRows& rows, uint8_t* out);

// n elements of f32, f16 or bf16 as float32.
void widen(WeightType type, const uint8_t* stored, int64_t n, float* out);

}  // namespace kvw
