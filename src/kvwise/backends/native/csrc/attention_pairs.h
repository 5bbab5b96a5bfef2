// Pairs of 16-bit integers in 32-bit lanes, and their exact dot products: the arithmetic of K and V in integers. Every
// instruction set gives the same integers. An I32x16 of pairs holds one of 32 bits per lane, the first in the low half.
//
//   dot_pairs(acc, a, b)       acc[lane] += a.first · b.first + a.second · b.second
//   load_int8_pairs(p)         32 bytes: lane i is (p[2i], p[2i + 1])
//   load_int4_pairs(p)         16 bytes: lane i < 8 is the low nibbles of (p[2i], p[2i + 1]), lane 8 + i the high ones
//   load_int4_pairs(p, x, y)   32 bytes: lane i of x is the low nibbles of (p[2i], p[2i + 1]), of y the high ones
//                              all nibbles minus 8
//   store_int16(p, x)          16 lanes, each within 16 bits, as pairs; p may point to memory of any type
#pragma once

#include "vec.h"

namespace kvw::KVW_ISA {

#if defined(KVW_ISA_AVX512)

// Assembly, because GCC 12 copies and spills the accumulators of the intrinsic when many are live.
KVW_INLINE void dot_pairs(I32x16& acc, I32x16 a, I32x16 b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(acc.v) : "v"(a.v), "v"(b.v));
}
KVW_INLINE __m256i nibbles_of(__m256i x) {
  return _mm256_sub_epi8(_mm256_and_si256(x, _mm256_set1_epi8(15)), _mm256_set1_epi8(8));
}
KVW_INLINE I32x16 load_int8_pairs(const uint8_t* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
KVW_INLINE I32x16 load_int4_pairs(const uint8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(x), _mm_srli_epi16(x, 4), 1);
  return {_mm512_cvtepi8_epi16(nibbles_of(both))};
}
KVW_INLINE void load_int4_pairs(const uint8_t* p, I32x16& low, I32x16& high) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  low.v = _mm512_cvtepi8_epi16(nibbles_of(x));
  high.v = _mm512_cvtepi8_epi16(nibbles_of(_mm256_srli_epi16(x, 4)));
}
KVW_INLINE void store_int16(uint8_t* p, I32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x.v));
}

#elif defined(KVW_ISA_AVX2)

KVW_INLINE void dot_pairs(I32x16& acc, I32x16 a, I32x16 b) {
  acc.lo = _mm256_add_epi32(acc.lo, _mm256_madd_epi16(a.lo, b.lo));
  acc.hi = _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a.hi, b.hi));
}
KVW_INLINE __m128i nibbles_of(__m128i x) {
  return _mm_sub_epi8(_mm_and_si128(x, _mm_set1_epi8(15)), _mm_set1_epi8(8));
}
KVW_INLINE __m128i load_16_bytes(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
KVW_INLINE I32x16 load_int8_pairs(const uint8_t* p) {
  return {_mm256_cvtepi8_epi16(load_16_bytes(p)), _mm256_cvtepi8_epi16(load_16_bytes(p + 16))};
}
KVW_INLINE I32x16 load_int4_pairs(const uint8_t* p) {
  const __m128i x = load_16_bytes(p);
  return {_mm256_cvtepi8_epi16(nibbles_of(x)), _mm256_cvtepi8_epi16(nibbles_of(_mm_srli_epi16(x, 4)))};
}
KVW_INLINE void load_int4_pairs(const uint8_t* p, I32x16& low, I32x16& high) {
  const I32x16 first = load_int4_pairs(p), second = load_int4_pairs(p + 16);
  low = {first.lo, second.lo};
  high = {first.hi, second.hi};
}
KVW_INLINE void store_int16(uint8_t* p, I32x16 x) {
  // Packing works within 128-bit halves.
  const __m256i packed = _mm256_packs_epi32(x.lo, x.hi);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}

#elif defined(KVW_ISA_NEON)

KVW_INLINE void dot_pairs(I32x16& acc, I32x16 a, I32x16 b) {
  for (int i = 0; i < 4; ++i) {
    const int16x8_t x = vreinterpretq_s16_s32(a.q[i]), y = vreinterpretq_s16_s32(b.q[i]);
    const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y));
    acc.q[i] = vaddq_s32(acc.q[i], vpaddq_s32(low, vmull_high_s16(x, y)));
  }
}
KVW_INLINE int8x16_t nibbles_of(uint8x16_t x) { return vsubq_s8(vreinterpretq_s8_u8(x), vdupq_n_s8(8)); }
KVW_INLINE int32x4_t low_pairs(int8x16_t x) { return vreinterpretq_s32_s16(vmovl_s8(vget_low_s8(x))); }
KVW_INLINE int32x4_t high_pairs(int8x16_t x) { return vreinterpretq_s32_s16(vmovl_high_s8(x)); }
KVW_INLINE I32x16 load_int8_pairs(const uint8_t* p) {
  const int8x16_t first = vreinterpretq_s8_u8(vld1q_u8(p)), second = vreinterpretq_s8_u8(vld1q_u8(p + 16));
  return {{low_pairs(first), high_pairs(first), low_pairs(second), high_pairs(second)}};
}
KVW_INLINE I32x16 load_int4_pairs(const uint8_t* p) {
  const uint8x16_t x = vld1q_u8(p);
  const int8x16_t low = nibbles_of(vandq_u8(x, vdupq_n_u8(15))), high = nibbles_of(vshrq_n_u8(x, 4));
  return {{low_pairs(low), high_pairs(low), low_pairs(high), high_pairs(high)}};
}
KVW_INLINE void load_int4_pairs(const uint8_t* p, I32x16& low, I32x16& high) {
  const I32x16 first = load_int4_pairs(p), second = load_int4_pairs(p + 16);
  low = {{first.q[0], first.q[1], second.q[0], second.q[1]}};
  high = {{first.q[2], first.q[3], second.q[2], second.q[3]}};
}
KVW_INLINE void store_int16(uint8_t* p, I32x16 x) {
  for (int i = 0; i < 4; ++i) vst1_u8(p + 8 * i, vreinterpret_u8_s16(vmovn_s32(x.q[i])));
}

#else

KVW_INLINE int32_t pair_of(int first, int second) {
  return static_cast<int32_t>((static_cast<uint32_t>(second) << 16) | (static_cast<uint32_t>(first) & 0xFFFFu));
}
KVW_INLINE void dot_pairs(I32x16& acc, I32x16 a, I32x16 b) {
  for (int i = 0; i < 16; ++i) {
    const int32_t x = a.lane[i], y = b.lane[i];
    const int32_t first = static_cast<int16_t>(x) * static_cast<int16_t>(y);
    acc.lane[i] += first + (x >> 16) * (y >> 16);
  }
}
KVW_INLINE I32x16 load_int8_pairs(const uint8_t* p) {
  I32x16 x;
  for (int i = 0; i < 16; ++i)
    x.lane[i] = pair_of(static_cast<int8_t>(p[2 * i]), static_cast<int8_t>(p[2 * i + 1]));
  return x;
}
KVW_INLINE void load_int4_pairs(const uint8_t* p, I32x16& low, I32x16& high) {
  for (int i = 0; i < 16; ++i) {
    low.lane[i] = pair_of((p[2 * i] & 15) - 8, (p[2 * i + 1] & 15) - 8);
    high.lane[i] = pair_of((p[2 * i] >> 4) - 8, (p[2 * i + 1] >> 4) - 8);
  }
}
KVW_INLINE I32x16 load_int4_pairs(const uint8_t* p) {
  I32x16 x;
  for (int i = 0; i < 8; ++i) {
    x.lane[i] = pair_of((p[2 * i] & 15) - 8, (p[2 * i + 1] & 15) - 8);
    x.lane[8 + i] = pair_of((p[2 * i] >> 4) - 8, (p[2 * i + 1] >> 4) - 8);
  }
  return x;
}
KVW_INLINE void store_int16(uint8_t* p, I32x16 x) {
  for (int i = 0; i < 8; ++i) {
    const int32_t pair = pair_of(x.lane[2 * i], x.lane[2 * i + 1]);
    std::memcpy(p + 4 * i, &pair, sizeof pair);
  }
}

#endif

}  // namespace kvw::KVW_ISA
