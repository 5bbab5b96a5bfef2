#include "layout.h"

#include <cstring>

namespace kvw {
namespace {

// The stored rows of one tile: 16 pointers, null where the tile is padding.
struct TileRows {
  const uint8_t* row[kLanes];
};

template <class Element>
void interleave_elements(const TileRows& rows, int64_t inputs, uint8_t* out) {
  constexpr int64_t kChunk = 16;  // inputs at a time, so that 16 source lines and 16 target lines stay in L1
  auto* target = reinterpret_cast<Element*>(out);
  for (int64_t k0 = 0; k0 < inputs; k0 += kChunk) {
    const int64_t k1 = k0 + kChunk < inputs ? k0 + kChunk : inputs;
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int64_t k = k0; k < k1; ++k) {
        Element element{};
        if (rows.row[lane]) std::memcpy(&element, rows.row[lane] + k * int64_t{sizeof(Element)}, sizeof element);
        target[k * kLanes + lane] = element;
      }
    }
  }
}

// Copies 32-bit words of one lane's block to their places, 64 bytes apart, with `flip` applied.
void spread_words(const uint8_t* stored, int words, uint32_t flip, int lane, uint8_t* out) {
  for (int j = 0; j < words; ++j) {
    uint32_t word = 0;
    if (stored) std::memcpy(&word, stored + 4 * j, 4);
    word ^= flip;
    std::memcpy(out + 64 * j + 4 * lane, &word, 4);
  }
}

void copy_f16(const uint8_t* stored, int lane, uint8_t* out) {
  uint16_t bits = 0;
  if (stored) std::memcpy(&bits, stored, 2);
  std::memcpy(out + 2 * lane, &bits, 2);
}

// q8_0 and q4_0: one scale per block, then `words` 32-bit words.
void interleave_paired(const TileRows& rows, int64_t blocks, int words, uint32_t flip, uint8_t* out) {
  const int64_t block_bytes = 2 + 4 * words;
  for (int64_t b = 0; b < blocks; ++b) {
    uint8_t* pair = out + (b / 2) * (64 + 2 * 64 * words);
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint8_t* stored = rows.row[lane] ? rows.row[lane] + b * block_bytes : nullptr;
      copy_f16(stored, lane, pair + (b % 2) * 2 * kLanes);
      spread_words(stored ? stored + 2 : nullptr, words, flip, lane, pair + 64 + (b % 2) * 64 * words);
    }
  }
}

void interleave_q4_1(const TileRows& rows, int64_t blocks, uint8_t* out) {
  constexpr int64_t kBlockBytes = 20;
  for (int64_t b = 0; b < blocks; ++b, out += 64 + 256) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint8_t* stored = rows.row[lane] ? rows.row[lane] + b * kBlockBytes : nullptr;
      copy_f16(stored, lane, out);
      copy_f16(stored ? stored + 2 : nullptr, lane, out + 2 * kLanes);
      spread_words(stored ? stored + 4 : nullptr, 4, 0, lane, out + 64);
    }
  }
}

}  // namespace

void repack_tile(const WeightMatrix& matrix, const uint8_t* stored, int64_t tile, uint8_t* out) {
  const int64_t row_bytes = stored_row_bytes(matrix.type, matrix.inputs);
  TileRows rows;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int64_t row = tile * kLanes + lane;
    rows.row[lane] = row < matrix.outputs ? stored + row * row_bytes : nullptr;
  }
  const int64_t blocks = matrix.inputs / block_shape(matrix.type).elements;
  switch (matrix.type) {
    case WeightType::f32: return interleave_elements<uint32_t>(rows, matrix.inputs, out);
    case WeightType::f16:
    case WeightType::bf16: return interleave_elements<uint16_t>(rows, matrix.inputs, out);
    // A padding row is 0 + 128 in every byte, and its scale is 0.
    case WeightType::q8_0: return interleave_paired(rows, blocks, 8, 0x80808080u, out);
    case WeightType::q4_0: return interleave_paired(rows, blocks, 4, 0, out);
    case WeightType::q4_1: return interleave_q4_1(rows, blocks, out);
    default: return interleave_elements<uint8_t>(rows, row_bytes, out);
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
    uint32_t bits = uint32_t{half} << 16;  // bf16 is the upper half of a float32
    if (type == WeightType::f16) {
      const uint32_t sign = uint32_t{half & 0x8000u} << 16, exponent = half >> 10 & 31u, fraction = half & 1023u;
      if (exponent == 31) {
        bits = sign | 0x7f800000u | fraction << 13;
      } else if (exponent != 0) {
        bits = sign | (exponent + 112) << 23 | fraction << 13;
      } else {  // zero or subnormal: fraction · 2^-24, exact in float32
        const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
        std::memcpy(&bits, &magnitude, 4);
        bits |= sign;
      }
    }
    std::memcpy(out + i, &bits, 4);
  }
}

}  // namespace kvw
