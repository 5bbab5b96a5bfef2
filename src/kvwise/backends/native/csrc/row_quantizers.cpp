#include "row_quantizers.h"

#include <cmath>
#include <cstring>

namespace kvw {
namespace {

constexpr int kBlock = 32;

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// Rounded to the nearest half-precision number, ties to even; what is too large becomes infinite.
uint16_t to_f16(float x) {
  const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65536 and more
  if (magnitude < 0x38800000u) {                                              // subnormal: a multiple of 2^-24
    float small;
    std::memcpy(&small, &magnitude, sizeof small);
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(small * 0x1p24f)));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);  // a carry out of the fraction is right, too
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

void store_f16(float x, uint8_t* out) {
  const uint16_t half = to_f16(x);
  std::memcpy(out, &half, sizeof half);
}

// 0 for scales so small that the reciprocal would not be finite: every code is 0 then.
float reciprocal(float scale) {
  const float inverse = 1.0f / scale;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

// Bits of magnitudes order as the magnitudes do, and compare as integers in vectors.
int32_t largest_magnitude_bits(const float* x, int64_t n) {
  int32_t most = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<int32_t>(bits_of(x[i]) & 0x7fffffffu);
    most = magnitude > most ? magnitude : most;
  }
  return most;
}

void pack_nibbles(const int32_t* codes, uint8_t* out) {
  for (int i = 0; i < kBlock / 2; ++i) out[i] = static_cast<uint8_t>(codes[i] | codes[i + kBlock / 2] << 4);
}

// The largest magnitude of n numbers as 127 steps.
float eight_bit_scale(const float* x, int64_t n) {
  const int32_t most_bits = largest_magnitude_bits(x, n);
  float most;
  std::memcpy(&most, &most_bits, sizeof most);
  return most / 127.0f;
}

// 32 signed bytes; halves are rounded away from zero.
void store_bytes(const float* x, float inverse, uint8_t* out) {
  int32_t codes[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    const float scaled = std::fabs(x[i] * inverse);
    const auto whole = static_cast<int32_t>(scaled);
    const int32_t rounded = whole + (scaled - static_cast<float>(whole) >= 0.5f ? 1 : 0);
    codes[i] = x[i] < 0.0f ? -rounded : rounded;
  }
  for (int i = 0; i < kBlock; ++i) out[i] = static_cast<uint8_t>(codes[i]);
}

// f16 scale | 32 signed bytes.
void quantize_q8_0(const float* x, int64_t n, uint8_t* out) {
  for (int64_t b = 0; b < n; b += kBlock, x += kBlock, out += 34) {
    const float scale = eight_bit_scale(x, kBlock);
    store_f16(scale, out);
    store_bytes(x, reciprocal(scale), out + 2);
  }
}

// f32 scale of the row | signed bytes.
void quantize_i8(const float* x, int64_t n, uint8_t* out) {
  const float scale = eight_bit_scale(x, n), inverse = reciprocal(scale);
  std::memcpy(out, &scale, sizeof scale);
  for (int64_t b = 0; b < n; b += kBlock) store_bytes(x + b, inverse, out + 4 + b);
}

// f16 scale | 16 bytes of nibbles for each 32 of `group` elements: q4_0 and i4. The first element farthest from zero
// becomes code 0, that is -8 scales.
template <int group>
void quantize_nibbles(const float* x, int64_t n, uint8_t* out) {
  for (int64_t b = 0; b < n; b += group) {
    const auto most_bits = static_cast<uint32_t>(largest_magnitude_bits(x, group));
    int farthest = 0;
    while ((bits_of(x[farthest]) & 0x7fffffffu) != most_bits) ++farthest;
    const float scale = x[farthest] / -8.0f, inverse = reciprocal(scale);
    store_f16(scale, out);
    out += 2;
    for (int at = 0; at < group; at += kBlock, x += kBlock, out += kBlock / 2) {
      int32_t codes[kBlock];
      for (int i = 0; i < kBlock; ++i) {  // in double: the product is exact, only the sum is rounded
        const auto code = static_cast<int32_t>(static_cast<double>(x[i]) * inverse + 8.5);
        codes[i] = code > 15 ? 15 : code;
      }
      pack_nibbles(codes, out);
    }
  }
}

// f16 scale | f16 minimum | 16 bytes of nibbles.
void quantize_q4_1(const float* x, int64_t n, uint8_t* out) {
  for (int64_t b = 0; b < n; b += kBlock, x += kBlock, out += 20) {
    float low = x[0], high = x[0];
    for (int i = 1; i < kBlock; ++i) {
      low = x[i] < low ? x[i] : low;
      high = x[i] > high ? x[i] : high;
    }
    const float scale = (high - low) / 15.0f, inverse = reciprocal(scale);
    store_f16(scale, out);
    store_f16(low, out + 2);
    int32_t codes[kBlock];
    for (int i = 0; i < kBlock; ++i) {
      const double above = static_cast<double>(x[i]) - static_cast<double>(low);
      const auto code = static_cast<int32_t>(above * inverse + 0.5);
      codes[i] = code > 15 ? 15 : code;
    }
    pack_nibbles(codes, out + 4);
  }
}

}  // namespace

RowQuantizer row_quantizer(WeightType type) {
  switch (type) {
    case WeightType::q8_0: return quantize_q8_0;
    case WeightType::q4_0: return quantize_nibbles<32>;
    case WeightType::q4_1: return quantize_q4_1;
    case WeightType::i8: return quantize_i8;
    case WeightType::i4_64: return quantize_nibbles<64>;
    case WeightType::i4_128: return quantize_nibbles<128>;
    default: return nullptr;
  }
}

bool all_finite(const float* x, int64_t n) {
  uint32_t exponents_full = 0;
  for (int64_t i = 0; i < n; ++i) exponents_full |= (bits_of(x[i]) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  return exponents_full == 0;
}

}  // namespace kvw
