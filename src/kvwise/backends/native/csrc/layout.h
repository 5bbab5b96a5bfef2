// How weights lie in memory: 16 output rows interleaved, whatever the instruction set. Sizes and repacking.
//
// A matrix is a sequence of tiles; a tile is 16 output rows (lanes) over all inputs k. The last tile is padded with
// zero rows. Every tile starts on a cache line.
//
//   f32, f16         element [k][lane]
//
//   bf16             pair [k / 2][lane][k % 2]; an odd last one has a zero beside it
//
//   block types      units of one stored block each: a head with the f16 scales, sub-scales, then the codes of each 32
//                    inputs. A head of half a line is shared by two units, so that everything stays on cache lines;
//                    after an odd last unit the second half is unused.
//
//        head 64 B   | f16 scale [lane], f16 minimum [lane] | sub-scales | codes |                    for each unit
//        head 32 B   | f16 scale [2][lane] | sub-scales, codes of unit 2p | the same of unit 2p + 1 |  for each pair
//
//        type    head  sub-scales, a byte each                      codes of 32 inputs: planes, lines of 64 B
//        q8_0    32                                                 8: [k / 4][lane][k % 4], each w + 128
//        q4_0    32                                                 4 of nibbles
//        q4_1    64                                                 4 of nibbles
//        i4_64   32                                                 4 of nibbles, 2 blocks of 32 in a unit
//        i4_128  32                                                 4 of nibbles, 4 blocks of 32 in a unit
//        q5_0    32                                                 1 of bits, 4 of nibbles
//        q5_1    64                                                 1 of bits, 4 of nibbles
//        q2_k    64    [8][lane][2], scale below 4 bits of minimum  2 of pairs
//        q3_k    32    [8][lane][2], scale - 32                     1 of bits, 2 of pairs
//        q4_k    64    scale [8][lane], minimum [8][lane]           4 of nibbles
//        q5_k    64    scale [8][lane], minimum [8][lane]           1 of bits, 4 of nibbles
//        q6_k    32    scale [16][lane]                             2 of pairs, 4 of nibbles
//
//   i8               | f32 scale [lane]   64 B | codes of all blocks of 32 inputs, as q8_0's |
//
//        Quad q = 0..7 of 32 inputs is k = 4q .. 4q + 3; a line holds [lane][4], input k in byte k % 4. Codes are
//        unsigned, the lowest bits in the last plane.
//            nibbles   line q % 4: the low half for q < 4, the high half for q + 4
//            pairs     line q / 4: bits 2 (q % 4) and the next
//            bits      the line's bit q
//
// Block formats as stored: github.com/ggml-org/ggml, src/ggml-common.h.
#pragma once

#include "kernel_table.h"

namespace kvw {

struct BlockShape {
  int64_t elements;
  int64_t bytes;
};

// static: kernels include this, and must not share functions with other instruction sets (vec.h).
static constexpr BlockShape block_shape(WeightType type) {
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
static constexpr bool is_own(WeightType type) {
  return type == WeightType::i8 || type == WeightType::i4_64 || type == WeightType::i4_128;
}

// A row begins with this many bytes that belong to no block: the scale of an i8 row.
static constexpr int64_t row_header_bytes(WeightType type) { return type == WeightType::i8 ? 4 : 0; }

// Bytes of the parts of a unit, for all lanes; zeros for float types, and no head where the scale is a row's.
struct UnitShape {
  int64_t head, sub_scales, codes;
};

static constexpr UnitShape unit_shape(WeightType type) {
  constexpr int64_t kLine = 64, kSubScales = 4 * kLine;
  switch (type) {
    case WeightType::q8_0: return {32, 0, 8 * kLine};
    case WeightType::q4_0: return {32, 0, 4 * kLine};
    case WeightType::q4_1: return {64, 0, 4 * kLine};
    case WeightType::q5_0: return {32, 0, 5 * kLine};
    case WeightType::q5_1: return {64, 0, 5 * kLine};
    case WeightType::q2_k: return {64, kSubScales, 8 * 2 * kLine};
    case WeightType::q3_k: return {32, kSubScales, 8 * 3 * kLine};
    case WeightType::q4_k: return {64, kSubScales, 8 * 4 * kLine};
    case WeightType::q5_k: return {64, kSubScales, 8 * 5 * kLine};
    case WeightType::q6_k: return {32, kSubScales, 8 * 6 * kLine};
    case WeightType::i8: return {0, 0, 8 * kLine};
    case WeightType::i4_64: return {32, 0, 2 * 4 * kLine};
    case WeightType::i4_128: return {32, 0, 4 * 4 * kLine};
    default: return {0, 0, 0};
  }
}

// Where in a tile unit u's head and what follows it, its body, start.
static constexpr int64_t body_bytes(UnitShape unit) { return unit.sub_scales + unit.codes; }
static constexpr int64_t head_offset(UnitShape unit, int64_t u) {
  const int64_t paired = unit.head == 32;
  return (u >> paired) * (64 + (body_bytes(unit) << paired)) + (u & paired) * 32;
}
static constexpr int64_t body_offset(UnitShape unit, int64_t u) {
  const int64_t paired = unit.head == 32;
  return (u >> paired) * (64 + (body_bytes(unit) << paired)) + 64 + (u & paired) * body_bytes(unit);
}

// Types with integer kernels.
static constexpr bool can_take_q8(WeightType type) { return unit_shape(type).codes != 0; }

// Bytes of one row as stored in a file.
static constexpr int64_t stored_row_bytes(WeightType type, int64_t inputs) {
  return row_header_bytes(type) + inputs / block_shape(type).elements * block_shape(type).bytes;
}

// Bytes of a row of activations, and what it is by its bytes: all different where a type has kernels for it.
static constexpr size_t row_bytes_of(Activations kind, int64_t width) {
  switch (kind) {
    case Activations::q8: return q8_row_bytes(width);
    case Activations::q8x2: return 2 * q8_row_bytes(width);
    case Activations::bf16: return sizeof(uint16_t) * (width + width % 2);
    case Activations::f32: break;
  }
  return sizeof(float) * width;
}
static constexpr Activations activations_of(size_t row_bytes, WeightType type, int64_t width) {
  if (type == WeightType::bf16 && width > 1 && row_bytes == row_bytes_of(Activations::bf16, width)) return Activations::bf16;
  if (!can_take_q8(type)) return Activations::f32;
  if (row_bytes == row_bytes_of(Activations::q8, width)) return Activations::q8;
  return row_bytes == row_bytes_of(Activations::q8x2, width) ? Activations::q8x2 : Activations::f32;
}

static constexpr int64_t tile_bytes(WeightType type, int64_t inputs) {
  const int64_t blocks = inputs / block_shape(type).elements;
  const UnitShape unit = unit_shape(type);
  const int64_t scales = kLanes * row_header_bytes(type) + unit.head * blocks;
  const int64_t bytes = unit.codes != 0 ? scales : kLanes * stored_row_bytes(type, inputs);
  return (bytes + 63) / 64 * 64 + body_bytes(unit) * blocks;
}

static constexpr int64_t num_tiles(int64_t outputs) { return (outputs + kLanes - 1) / kLanes; }

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

// All that repack_tile does for K-quants, q5_0 and q5_1, whose codes are taken apart into planes.
void repack_planes(WeightType type, const TileRows& rows, int64_t blocks, uint8_t* out);

// n elements of f32, f16 or bf16 as float32.
void widen(WeightType type, const uint8_t* stored, int64_t n, float* out);

}  // namespace kvw
