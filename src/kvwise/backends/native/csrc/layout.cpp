#include "layout.h"

#include <cstring>

namespace kvw {
namespace {

// Four 32-bit words, moved about as one: a vector register on any machine.
using Words = uint32_t __attribute__((vector_size(16)));

Words load_words(const uint8_t* p) {
  Words words;
  std::memcpy(&words, p, sizeof words);
  return words;
}

// Words j of rows 0..3 become vector j: out[j][lane] = in[lane][j].
void store_transposed(const Words (&in)[4], uint8_t* out, int64_t stride) {
  const Words low01 = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
  const Words low23 = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
  const Words high01 = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
  const Words high23 = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
  const Words columns[4] = {
      __builtin_shufflevector(low01, low23, 0, 1, 4, 5), __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
      __builtin_shufflevector(high01, high23, 0, 1, 4, 5), __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
  for (int j = 0; j < 4; ++j) std::memcpy(out + j * stride, &columns[j], sizeof columns[j]);
}

// kWords 32-bit words from byte `at` of every row become out[word][lane], 64 bytes a word, with `flip` applied.
template <int kWords>
void interleave_words(const TileRows& rows, int64_t at, uint32_t flip, uint8_t* out) {
  static_assert(kWords % 4 == 0);
  const Words flips = {flip, flip, flip, flip};
  for (int lane = 0; lane < kLanes; lane += 4) {
    for (int j = 0; j < kWords; j += 4) {
      Words words[4];
      for (int i = 0; i < 4; ++i) words[i] = load_words(rows.row[lane + i] + at + 4 * j) ^ flips;
      store_transposed(words, out + 4 * kLanes * j + 4 * lane, 4 * kLanes);
    }
  }
}

template <class Element>
void interleave_elements(const TileRows& rows, int64_t inputs, uint8_t* out) {
  constexpr int64_t kChunk = 16;  // inputs at a time, so that 16 source lines and 16 target lines stay in L1
  auto* target = reinterpret_cast<Element*>(out);
  for (int64_t k0 = 0; k0 < inputs; k0 += kChunk) {
    const int64_t k1 = k0 + kChunk < inputs ? k0 + kChunk : inputs;
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int64_t k = k0; k < k1; ++k) {
        std::memcpy(target + k * kLanes + lane, rows.row[lane] + k * int64_t{sizeof(Element)}, sizeof(Element));
      }
    }
  }
}

// f32: whole groups of four inputs at a time, the rest one by one.
void interleave_f32(const TileRows& rows, int64_t inputs, uint8_t* out) {
  const int64_t whole = inputs / 4 * 4;
  for (int64_t k = 0; k < whole; k += 4) interleave_words<4>(rows, 4 * k, 0, out + 4 * kLanes * k);
  TileRows rest;
  for (int lane = 0; lane < kLanes; ++lane) rest.row[lane] = rows.row[lane] + 4 * whole;
  interleave_elements<uint32_t>(rest, inputs - whole, out + 4 * kLanes * whole);
}

// f16: a 32-bit word is two inputs of one row; two of them become two elements of two rows.
void interleave_halves(const TileRows& rows, int64_t inputs, uint8_t* out) {
  const int64_t whole = inputs / 8 * 8;
  alignas(64) uint32_t pairs[4][kLanes];  // [pair of inputs][lane]
  for (int64_t k = 0; k < whole; k += 8) {
    interleave_words<4>(rows, 2 * k, 0, reinterpret_cast<uint8_t*>(pairs));
    for (int pair = 0; pair < 4; ++pair) {
      uint16_t lines[2][kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        lines[0][lane] = static_cast<uint16_t>(pairs[pair][lane]);
        lines[1][lane] = static_cast<uint16_t>(pairs[pair][lane] >> 16);
      }
      std::memcpy(out + 2 * kLanes * (k + 2 * pair), lines, sizeof lines);
    }
  }
  TileRows rest;
  for (int lane = 0; lane < kLanes; ++lane) rest.row[lane] = rows.row[lane] + 2 * whole;
  interleave_elements<uint16_t>(rest, inputs - whole, out + 2 * kLanes * whole);
}

// bf16: a 32-bit word is a pair of inputs of one row, and stays one.
void interleave_pairs(const TileRows& rows, int64_t inputs, uint8_t* out) {
  const int64_t whole = inputs / 8 * 8;
  for (int64_t k = 0; k < whole; k += 8) interleave_words<4>(rows, 2 * k, 0, out + 2 * kLanes * k);
  for (int64_t k = whole; k < inputs; k += 2) {
    for (int lane = 0; lane < kLanes; ++lane) {
      uint8_t pair[4] = {};
      std::memcpy(pair, rows.row[lane] + 2 * k, k + 1 < inputs ? 4 : 2);
      std::memcpy(out + 2 * kLanes * k + 4 * lane, pair, sizeof pair);
    }
  }
}

// The f16 at byte `at` of every row.
void interleave_f16(const TileRows& rows, int64_t at, uint8_t* out) {
  for (int lane = 0; lane < kLanes; ++lane) std::memcpy(out + 2 * lane, rows.row[lane] + at, 2);
}

// One f16 scale per block, then kWords 32-bit words: q8_0, q4_0, and the groups of i4.
template <int kWords>
void interleave_paired(const TileRows& rows, int64_t blocks, uint32_t flip, uint8_t* out) {
  constexpr int64_t kBlockBytes = 2 + 4 * kWords;
  for (int64_t b = 0; b < blocks; ++b) {
    uint8_t* pair = out + (b / 2) * (64 + 2 * 64 * kWords);
    interleave_f16(rows, b * kBlockBytes, pair + (b % 2) * 2 * kLanes);
    interleave_words<kWords>(rows, b * kBlockBytes + 2, flip, pair + 64 + (b % 2) * 64 * kWords);
  }
}

void interleave_i8(const TileRows& rows, int64_t inputs, uint8_t* out) {
  for (int lane = 0; lane < kLanes; ++lane) std::memcpy(out + 4 * lane, rows.row[lane], 4);
  for (int64_t k = 0; k < inputs; k += 32) interleave_words<8>(rows, 4 + k, 0x80808080u, out + 64 + kLanes * k);
}

void interleave_q4_1(const TileRows& rows, int64_t blocks, uint8_t* out) {
  constexpr int64_t kBlockBytes = 20;
  for (int64_t b = 0; b < blocks; ++b, out += 64 + 256) {
    interleave_f16(rows, b * kBlockBytes, out);
    interleave_f16(rows, b * kBlockBytes + 2, out + 2 * kLanes);
    interleave_words<4>(rows, b * kBlockBytes + 4, 0, out + 64);
  }
}

// Bits of the float32 that equals a half-precision number; without branches, so that loops over it become vectors.
uint32_t f16_as_f32(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16, magnitude = half & 0x7fffu;
  // A subnormal is fraction · 2^-24: as the fraction of a number from 2^-14 on, less 2^-14, which is exact.
  const uint32_t above = magnitude << 13 | 0x38800000u;
  constexpr float kSmallestNormal = 0x1p-14f;
  float subnormal;
  std::memcpy(&subnormal, &above, 4);
  subnormal -= kSmallestNormal;
  uint32_t subnormal_bits;
  std::memcpy(&subnormal_bits, &subnormal, 4);
  const uint32_t normal_bits = (magnitude << 13) + 0x38000000u;
  const uint32_t not_finite_bits = magnitude << 13 | 0x7f800000u;
  return sign | (magnitude < 0x400u ? subnormal_bits : magnitude < 0x7c00u ? normal_bits : not_finite_bits);
}

}  // namespace

void repack_tile(WeightType type, int64_t inputs, const TileRows& rows, uint8_t* out) {
  const int64_t blocks = inputs / block_shape(type).elements;
  switch (type) {
    case WeightType::f32: return interleave_f32(rows, inputs, out);
    case WeightType::f16: return interleave_halves(rows, inputs, out);
    case WeightType::bf16: return interleave_pairs(rows, inputs, out);
    // A padding row is 0 + 128 in every byte, and its scale is 0.
    case WeightType::q8_0: return interleave_paired<8>(rows, blocks, 0x80808080u, out);
    case WeightType::q4_0: return interleave_paired<4>(rows, blocks, 0, out);
    case WeightType::i4_64: return interleave_paired<8>(rows, blocks, 0, out);
    case WeightType::i4_128: return interleave_paired<16>(rows, blocks, 0, out);
    case WeightType::i8: return interleave_i8(rows, inputs, out);
    case WeightType::q4_1: return interleave_q4_1(rows, blocks, out);
    default: return repack_planes(type, rows, blocks, out);
  }
}

void widen(WeightType type, const uint8_t* stored, int64_t n, float* out) {
  if (type == WeightType::f32) {
    std::memcpy(out, stored, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half;
    std::memcpy(&half, stored + 2 * i, 2);
    const uint32_t bits = type == WeightType::f16 ? f16_as_f32(half) : uint32_t{half} << 16;
    std::memcpy(out + i, &bits, 4);
  }
}

}  // namespace kvw
