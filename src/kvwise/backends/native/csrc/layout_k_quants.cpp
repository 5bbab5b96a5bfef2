// Repacks stored blocks of K-quants, q5_0 and q5_1: one lane's block is taken apart into codes and sub-scales, then
// written to its places in the planes that layout.h draws.
//
// Block formats: github.com/ggml-org/ggml, src/ggml-common.h (structs) and ggml-quants.c (order of elements).
#include <cstring>

#include "layout.h"

namespace kvw {
namespace {

// One block of one lane. `scales`: a byte for each row of the layout's sub-scales.
struct Block {
  uint8_t codes[256];
  uint8_t scales[16];
  uint16_t d, minimum;  // f16
};

uint16_t half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bits;
}

// n bytes of nibbles: the low ones are n codes, the high ones the next n.
void read_nibbles(const uint8_t* packed, int n, uint8_t* codes) {
  for (int i = 0; i < n; ++i) {
    codes[i] = packed[i] & 15;
    codes[n + i] = packed[i] >> 4;
  }
}

// Adds to 32 codes a field that starts at bit `from` of 32 bytes, raised by `to` bits.
void add_field(const uint8_t* packed, int from, uint8_t mask, int to, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | (packed[i] >> from & mask) << to);
}

// uint32 of fifth bits, 16 bytes of nibbles.
void read_five_bits(const uint8_t* p, Block& block) {
  uint32_t fifth;
  std::memcpy(&fifth, p, 4);
  read_nibbles(p + 4, 16, block.codes);
  for (int i = 0; i < 32; ++i) block.codes[i] = static_cast<uint8_t>(block.codes[i] | (fifth >> i & 1) << 4);
}

// Two-bit codes, 128 elements in 32 bytes: bits 2j and 2j + 1 are 32 elements.
void read_pairs(const uint8_t* packed, uint8_t* codes) {
  std::memset(codes, 0, 256);
  for (int j = 0; j < 8; ++j) add_field(packed + 32 * (j / 4), 2 * (j % 4), 3, 0, codes + 32 * j);
}

// 12 bytes of eight 6-bit scales and minima: four of each whole in bytes 0..3 and 4..7, whose upper 2 bits complete the
// nibbles of bytes 8..11.
void read_six_bit_scales(const uint8_t* packed, Block& block) {
  for (int g = 0; g < 4; ++g) {
    block.scales[g] = packed[g] & 63;
    block.scales[8 + g] = packed[4 + g] & 63;
    block.scales[4 + g] = static_cast<uint8_t>((packed[8 + g] & 15) | packed[g] >> 6 << 4);
    block.scales[12 + g] = static_cast<uint8_t>(packed[8 + g] >> 4 | packed[4 + g] >> 6 << 4);
  }
}

// 32 bytes of third bits, 64 of two-bit codes, 12 of sixteen 6-bit scales, f16 d.
void read_q3_k(const uint8_t* p, Block& block) {
  const uint8_t* scales = p + 96;
  read_pairs(p + 32, block.codes);
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4, high = scales[8 + g % 4] >> (2 * (g / 4)) & 3;
    block.scales[g] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  for (int j = 0; j < 8; ++j) add_field(p, j, 1, 2, block.codes + 32 * j);
  block.d = half_at(p + 108);
}

// 128 bytes of nibbles, 64 of upper pairs, 16 signed scales, f16 d. 128 elements at a time: 64 bytes, 32 bytes.
void read_q6_k(const uint8_t* p, Block& block) {
  for (int half = 0; half < 2; ++half) {
    uint8_t* codes = block.codes + 128 * half;
    read_nibbles(p + 64 * half, 64, codes);
    for (int j = 0; j < 4; ++j) add_field(p + 128 + 32 * half, 2 * j, 3, 4, codes + 32 * j);
  }
  std::memcpy(block.scales, p + 192, 16);
  block.d = half_at(p + 208);
}

void read_block(WeightType type, const uint8_t* p, Block& block) {
  block.d = half_at(p);
  block.minimum = half_at(p + 2);
  switch (type) {
    case WeightType::q5_0: return read_five_bits(p + 2, block);
    case WeightType::q5_1: return read_five_bits(p + 4, block);
    case WeightType::q2_k:  // 16 bytes of scale and minimum, 64 of codes, f16 d, f16 minimum
      read_pairs(p + 16, block.codes);
      std::memcpy(block.scales, p, 16);
      block.d = half_at(p + 80);
      block.minimum = half_at(p + 82);
      return;
    case WeightType::q3_k: return read_q3_k(p, block);
    case WeightType::q4_k:  // f16 d, f16 minimum, 12 bytes of scales, 128 of nibbles in runs of 32
      read_six_bit_scales(p + 4, block);
      for (int j = 0; j < 4; ++j) read_nibbles(p + 16 + 32 * j, 32, block.codes + 64 * j);
      return;
    case WeightType::q5_k:  // as q4_k, with 32 bytes of fifth bits before the nibbles, a bit for each 32 elements
      read_six_bit_scales(p + 4, block);
      for (int j = 0; j < 4; ++j) read_nibbles(p + 48 + 32 * j, 32, block.codes + 64 * j);
      for (int j = 0; j < 8; ++j) add_field(p + 16, j, 1, 4, block.codes + 32 * j);
      return;
    case WeightType::q6_k: return read_q6_k(p, block);
    default: return;
  }
}

// Bits of the first and of the second plane.
struct Planes {
  int low, high;
};
constexpr Planes planes_of(WeightType type) {
  switch (type) {
    case WeightType::q2_k: return {2, 0};
    case WeightType::q3_k: return {2, 1};
    case WeightType::q4_k: return {4, 0};
    case WeightType::q6_k: return {4, 2};
    default: return {4, 1};
  }
}

// Writes a word of four inputs to each line of a plane of `width` bits, which start at bit `from` of the codes.
// quads: 8 words of four codes. Returns the place after the plane.
uint8_t* write_plane(const uint32_t (&quads)[8], int width, int from, uint8_t* out) {
  const uint32_t mask = 0x01010101u * ((1u << width) - 1);
  const int lines = width, per_line = 8 / width;
  for (int line = 0; line < lines; ++line, out += 64) {
    uint32_t word = 0;
    for (int i = 0; i < per_line; ++i) {
      const int quad = width == 4 ? line + 4 * i : per_line * line + i;
      word |= (quads[quad] >> from & mask) << (width * i);
    }
    std::memcpy(out, &word, 4);
  }
  return out;
}

// [group][lane], but [group / 2][lane][group % 2] where kernels want the scales of two halves in a pair.
constexpr int sub_scale_offset(WeightType type, int g, int lane) {
  const bool paired = type == WeightType::q2_k || type == WeightType::q3_k;
  return paired ? kLanes * (g & ~1) + 2 * lane + (g & 1) : kLanes * g + lane;
}

template <WeightType type>
void repack(const TileRows& rows, int64_t blocks, uint8_t* out) {
  constexpr UnitShape unit = unit_shape(type);
  constexpr BlockShape stored = block_shape(type);
  constexpr Planes planes = planes_of(type);
  for (int64_t u = 0; u < blocks; ++u) {
    uint8_t *head = out + head_offset(unit, u), *body = out + body_offset(unit, u);
    for (int lane = 0; lane < kLanes; ++lane) {
      Block block;
      read_block(type, rows.row[lane] + u * stored.bytes, block);
      std::memcpy(head + 2 * lane, &block.d, 2);
      if (unit.head == 64) std::memcpy(head + 32 + 2 * lane, &block.minimum, 2);
      for (int g = 0; g < unit.sub_scales / kLanes; ++g) body[sub_scale_offset(type, g, lane)] = block.scales[g];
      uint8_t* plane = body + unit.sub_scales + 4 * lane;
      for (int64_t b = 0; b < stored.elements / 32; ++b) {
        uint32_t quads[8];
        std::memcpy(quads, block.codes + 32 * b, sizeof quads);
        if (planes.high) plane = write_plane(quads, planes.high, planes.low, plane);
        plane = write_plane(quads, planes.low, 0, plane);
      }
    }
  }
}

}  // namespace

void repack_planes(WeightType type, const TileRows& rows, int64_t blocks, uint8_t* out) {
  switch (type) {
    case WeightType::q5_0: return repack<WeightType::q5_0>(rows, blocks, out);
    case WeightType::q5_1: return repack<WeightType::q5_1>(rows, blocks, out);
    case WeightType::q2_k: return repack<WeightType::q2_k>(rows, blocks, out);
    case WeightType::q3_k: return repack<WeightType::q3_k>(rows, blocks, out);
    case WeightType::q4_k: return repack<WeightType::q4_k>(rows, blocks, out);
    case WeightType::q5_k: return repack<WeightType::q5_k>(rows, blocks, out);
    case WeightType::q6_k: return repack<WeightType::q6_k>(rows, blocks, out);
    default: return;
  }
}

}  // namespace kvw
