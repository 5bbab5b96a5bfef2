// Exact integer dot products of 4 weights and 4 activations in each of 16 lanes: the inner step of every quantized
// matmul. All instruction sets give the same integers.
//
//   Bytes64       64 weight bytes, 4 per lane: 8-bit weights stored as w + 128, or codes of fewer bits from 0 on
//   field<bits, from, to>(w)   of each byte the `bits` bits from bit `from` on, moved to bit `to`, and nothing else
//   joined(a, b)               bits of both
//   as_words(w)                the 4 bytes of each lane as an integer
//   store_bytes(p, w)
//   Pairs are two int16 in each lane of an I32x16, the first in the lower half:
//   load_u8_pairs(p) load_i8_pairs(p)   of 32 bytes
//   same_pair(p)                        the pair at p in every lane
//   pair_of(a, b)                       of integers that fit
//   dot_int16_pairs(a, b)               Σ of both products
//   Quad          4 activations, int8 in [-127, 127], the same in every lane
//   dot_bytes(acc, w, x)    acc[lane] += Σ (w - 128 + kByteBias) · x; the caller starts acc at
//                           -kByteBias · Σ x, so that Σ (w - 128) · x is left
//   dot_nibbles(acc, w, x)  acc[lane] += Σ w · x, w at most 127
#pragma once

#include "vec.h"

namespace kvw::KVW_ISA {

#if defined(KVW_ISA_AVX512)

// vpdpbusd takes unsigned bytes times signed ones, so the bias of 128 stays in and is taken off once per block.
constexpr int32_t kByteBias = 128;

struct Bytes64 {
  __m512i v;
};
struct Quad {
  __m512i v;
};

KVW_INLINE Bytes64 load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
KVW_INLINE Bytes64 low_nibbles(Bytes64 w) { return {_mm512_and_si512(w.v, _mm512_set1_epi8(15))}; }
KVW_INLINE Bytes64 high_nibbles(Bytes64 w) {
  return {_mm512_and_si512(_mm512_srli_epi16(w.v, 4), _mm512_set1_epi8(15))};
}
template <int bits, int from, int to>
KVW_INLINE Bytes64 field(Bytes64 w) {
  // Bits that a shift takes from the next byte are masked off.
  if constexpr (from > to) w.v = _mm512_srli_epi16(w.v, from - to);
  if constexpr (from < to) w.v = _mm512_slli_epi16(w.v, to - from);
  return {_mm512_and_si512(w.v, _mm512_set1_epi8(static_cast<char>(((1 << bits) - 1) << to)))};
}
KVW_INLINE Bytes64 joined(Bytes64 a, Bytes64 b) { return {_mm512_or_si512(a.v, b.v)}; }
KVW_INLINE I32x16 as_words(Bytes64 w) { return {w.v}; }
KVW_INLINE void store_bytes(uint8_t* p, Bytes64 w) { _mm512_storeu_si512(p, w.v); }
KVW_INLINE Quad load_quad(const int8_t* p) {
  int32_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return {_mm512_set1_epi32(bits)};
}
// Assembly, because GCC 12 copies and spills the accumulators of the intrinsic when many are live.
KVW_INLINE void dot_bytes(I32x16& acc, Bytes64 w, Quad x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc.v) : "v"(w.v), "v"(x.v));
}
KVW_INLINE void dot_nibbles(I32x16& acc, Bytes64 w, Quad x) { dot_bytes(acc, w, x); }

// acc[lane] += Σ w · x over the pair of bf16 in each lane. Only where pairs_are_fast (isa.h): written as assembly so that
// this file needs no more than the instruction set it is compiled for.
KVW_INLINE void dot_pairs(F32x16& acc, Bytes64 w, Quad x) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(acc.v) : "v"(w.v), "v"(x.v));
}

KVW_INLINE I32x16 load_u8_pairs(const uint8_t* p) {
  return {_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
KVW_INLINE I32x16 load_i8_pairs(const uint8_t* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
KVW_INLINE I32x16 pair_of(I32x16 a, I32x16 b) {
  return {_mm512_mask_blend_epi16(0xaaaaaaaa, a.v, _mm512_slli_epi32(b.v, 16))};
}
KVW_INLINE I32x16 dot_int16_pairs(I32x16 a, I32x16 b) { return {_mm512_madd_epi16(a.v, b.v)}; }

#elif defined(KVW_ISA_AVX2)

// vpmaddubsw adds two products in 16 bits. |w| · x with |w| <= 128 and |x| <= 127 is at most 2 · 128 · 127 = 32,512,
// and nibbles less: it never saturates. So the sign of w moves to x, and there is no bias.
constexpr int32_t kByteBias = 0;

struct Bytes64 {
  __m256i lo, hi;
};
struct Quad {
  __m256i v;
};

KVW_INLINE Bytes64 load_bytes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
KVW_INLINE Bytes64 low_nibbles(Bytes64 w) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(w.lo, mask), _mm256_and_si256(w.hi, mask)};
}
KVW_INLINE Bytes64 high_nibbles(Bytes64 w) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(w.lo, 4), mask), _mm256_and_si256(_mm256_srli_epi16(w.hi, 4), mask)};
}
template <int bits, int from, int to>
KVW_INLINE Bytes64 field(Bytes64 w) {
  if constexpr (from > to) w = {_mm256_srli_epi16(w.lo, from - to), _mm256_srli_epi16(w.hi, from - to)};
  if constexpr (from < to) w = {_mm256_slli_epi16(w.lo, to - from), _mm256_slli_epi16(w.hi, to - from)};
  const __m256i mask = _mm256_set1_epi8(static_cast<char>(((1 << bits) - 1) << to));
  return {_mm256_and_si256(w.lo, mask), _mm256_and_si256(w.hi, mask)};
}
KVW_INLINE Bytes64 joined(Bytes64 a, Bytes64 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
KVW_INLINE I32x16 as_words(Bytes64 w) { return {w.lo, w.hi}; }
KVW_INLINE void store_bytes(uint8_t* p, Bytes64 w) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), w.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), w.hi);
}
KVW_INLINE Quad load_quad(const int8_t* p) {
  int32_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return {_mm256_set1_epi32(bits)};
}
KVW_INLINE __m256i dot_unsigned(__m256i acc, __m256i w, __m256i x) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
KVW_INLINE __m256i dot_signed(__m256i acc, __m256i stored, __m256i x) {
  const __m256i w = _mm256_xor_si256(stored, _mm256_set1_epi8(-128));
  return dot_unsigned(acc, _mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}
KVW_INLINE void dot_bytes(I32x16& acc, Bytes64 w, Quad x) {
  acc.lo = dot_signed(acc.lo, w.lo, x.v);
  acc.hi = dot_signed(acc.hi, w.hi, x.v);
}
KVW_INLINE void dot_nibbles(I32x16& acc, Bytes64 w, Quad x) {
  acc.lo = dot_unsigned(acc.lo, w.lo, x.v);
  acc.hi = dot_unsigned(acc.hi, w.hi, x.v);
}

KVW_INLINE I32x16 load_u8_pairs(const uint8_t* p) {
  return {_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
KVW_INLINE I32x16 load_i8_pairs(const uint8_t* p) {
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
KVW_INLINE I32x16 pair_of(I32x16 a, I32x16 b) {
  return {_mm256_blend_epi16(a.lo, _mm256_slli_epi32(b.lo, 16), 0xaa),
          _mm256_blend_epi16(a.hi, _mm256_slli_epi32(b.hi, 16), 0xaa)};
}
KVW_INLINE I32x16 dot_int16_pairs(I32x16 a, I32x16 b) {
  return {_mm256_madd_epi16(a.lo, b.lo), _mm256_madd_epi16(a.hi, b.hi)};
}

#elif defined(KVW_ISA_NEON)

constexpr int32_t kByteBias = 0;  // sdot takes signed bytes on both sides

struct Bytes64 {
  uint8x16_t q[4];
};
struct Quad {
  int8x16_t v;
};

KVW_INLINE Bytes64 load_bytes(const uint8_t* p) {
  return {{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
}
KVW_INLINE Bytes64 low_nibbles(Bytes64 w) {
  for (int i = 0; i < 4; ++i) w.q[i] = vandq_u8(w.q[i], vdupq_n_u8(15));
  return w;
}
KVW_INLINE Bytes64 high_nibbles(Bytes64 w) {
  for (int i = 0; i < 4; ++i) w.q[i] = vshrq_n_u8(w.q[i], 4);
  return w;
}
template <int bits, int from, int to>
KVW_INLINE Bytes64 field(Bytes64 w) {
  for (int i = 0; i < 4; ++i) {
    if constexpr (from > to) w.q[i] = vshrq_n_u8(w.q[i], from - to);
    if constexpr (from < to) w.q[i] = vshlq_n_u8(w.q[i], to - from);
    w.q[i] = vandq_u8(w.q[i], vdupq_n_u8(((1 << bits) - 1) << to));
  }
  return w;
}
KVW_INLINE Bytes64 joined(Bytes64 a, Bytes64 b) {
  for (int i = 0; i < 4; ++i) a.q[i] = vorrq_u8(a.q[i], b.q[i]);
  return a;
}
KVW_INLINE I32x16 as_words(Bytes64 w) {
  I32x16 words;
  for (int i = 0; i < 4; ++i) words.q[i] = vreinterpretq_s32_u8(w.q[i]);
  return words;
}
KVW_INLINE void store_bytes(uint8_t* p, Bytes64 w) {
  for (int i = 0; i < 4; ++i) vst1q_u8(p + 16 * i, w.q[i]);
}
KVW_INLINE Quad load_quad(const int8_t* p) {
  int32_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return {vreinterpretq_s8_s32(vdupq_n_s32(bits))};
}
KVW_INLINE void dot_bytes(I32x16& acc, Bytes64 w, Quad x) {
  for (int i = 0; i < 4; ++i) {
    acc.q[i] = vdotq_s32(acc.q[i], vreinterpretq_s8_u8(veorq_u8(w.q[i], vdupq_n_u8(128))), x.v);
  }
}
KVW_INLINE void dot_nibbles(I32x16& acc, Bytes64 w, Quad x) {
  for (int i = 0; i < 4; ++i) acc.q[i] = vdotq_s32(acc.q[i], vreinterpretq_s8_u8(w.q[i]), x.v);
}

KVW_INLINE I32x16 load_u8_pairs(const uint8_t* p) {
  I32x16 r;
  for (int i = 0; i < 4; ++i) r.q[i] = vreinterpretq_s32_u16(vmovl_u8(vld1_u8(p + 8 * i)));
  return r;
}
KVW_INLINE I32x16 load_i8_pairs(const uint8_t* p) {
  I32x16 r;
  for (int i = 0; i < 4; ++i) r.q[i] = vreinterpretq_s32_s16(vmovl_s8(vreinterpret_s8_u8(vld1_u8(p + 8 * i))));
  return r;
}
KVW_INLINE I32x16 pair_of(I32x16 a, I32x16 b) {
  for (int i = 0; i < 4; ++i) a.q[i] = vsliq_n_s32(a.q[i], b.q[i], 16);
  return a;
}
KVW_INLINE I32x16 dot_int16_pairs(I32x16 a, I32x16 b) {
  for (int i = 0; i < 4; ++i) {
    const int16x8_t x = vreinterpretq_s16_s32(a.q[i]), y = vreinterpretq_s16_s32(b.q[i]);
    a.q[i] = vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
  }
  return a;
}

#else

constexpr int32_t kByteBias = 0;

struct Bytes64 {
  uint8_t byte[64];
};
struct Quad {
  int8_t byte[4];
};

KVW_INLINE Bytes64 load_bytes(const uint8_t* p) {
  Bytes64 w;
  std::memcpy(w.byte, p, sizeof w.byte);
  return w;
}
KVW_INLINE Bytes64 low_nibbles(Bytes64 w) {
  for (int i = 0; i < 64; ++i) w.byte[i] = static_cast<uint8_t>(w.byte[i] & 15);
  return w;
}
KVW_INLINE Bytes64 high_nibbles(Bytes64 w) {
  for (int i = 0; i < 64; ++i) w.byte[i] = static_cast<uint8_t>(w.byte[i] >> 4);
  return w;
}
template <int bits, int from, int to>
KVW_INLINE Bytes64 field(Bytes64 w) {
  for (int i = 0; i < 64; ++i) w.byte[i] = static_cast<uint8_t>((w.byte[i] >> from & ((1 << bits) - 1)) << to);
  return w;
}
KVW_INLINE Bytes64 joined(Bytes64 a, Bytes64 b) {
  for (int i = 0; i < 64; ++i) a.byte[i] = static_cast<uint8_t>(a.byte[i] | b.byte[i]);
  return a;
}
KVW_INLINE I32x16 as_words(Bytes64 w) {
  I32x16 words;
  std::memcpy(words.lane, w.byte, sizeof words.lane);
  return words;
}
KVW_INLINE void store_bytes(uint8_t* p, Bytes64 w) { std::memcpy(p, w.byte, sizeof w.byte); }
KVW_INLINE Quad load_quad(const int8_t* p) {
  Quad x;
  std::memcpy(x.byte, p, sizeof x.byte);
  return x;
}
KVW_INLINE void dot_biased(I32x16& acc, const Bytes64& w, Quad x, int32_t bias) {
  for (int lane = 0; lane < 16; ++lane) {
    for (int i = 0; i < 4; ++i) acc.lane[lane] += (int32_t{w.byte[4 * lane + i]} - bias) * x.byte[i];
  }
}
KVW_INLINE void dot_bytes(I32x16& acc, Bytes64 w, Quad x) { dot_biased(acc, w, x, 128); }
KVW_INLINE void dot_nibbles(I32x16& acc, Bytes64 w, Quad x) { dot_biased(acc, w, x, 0); }

KVW_INLINE int32_t pair_bits(int32_t first, int32_t second) {
  return static_cast<int32_t>((static_cast<uint32_t>(first) & 0xffffu) | static_cast<uint32_t>(second) << 16);
}
KVW_INLINE I32x16 pair_of(I32x16 a, I32x16 b) {
  for (int i = 0; i < 16; ++i) a.lane[i] = pair_bits(a.lane[i], b.lane[i]);
  return a;
}
KVW_INLINE I32x16 load_u8_pairs(const uint8_t* p) {
  I32x16 r;
  for (int i = 0; i < 16; ++i) r.lane[i] = pair_bits(p[2 * i], p[2 * i + 1]);
  return r;
}
KVW_INLINE I32x16 load_i8_pairs(const uint8_t* p) {
  I32x16 r;
  for (int i = 0; i < 16; ++i) r.lane[i] = pair_bits(static_cast<int8_t>(p[2 * i]), static_cast<int8_t>(p[2 * i + 1]));
  return r;
}
KVW_INLINE I32x16 dot_int16_pairs(I32x16 a, I32x16 b) {
  for (int i = 0; i < 16; ++i) {
    a.lane[i] = static_cast<int16_t>(a.lane[i]) * static_cast<int16_t>(b.lane[i]) + (a.lane[i] >> 16) * (b.lane[i] >> 16);
  }
  return a;
}

#endif

KVW_INLINE I32x16 same_pair(const int8_t* p) {
  int32_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return set1_i32(bits);
}

// The sums of `count` <= 16 blocks of a quantized activation (kernel_table.h), a word of two int16 in each lane. Any
// bits pass through a float load unchanged.
KVW_INLINE I32x16 load_half_sums(const int8_t* p, int count) {
  return as_i32(load_n(reinterpret_cast<const float*>(p), count));
}
KVW_INLINE I32x16 first_half(I32x16 sums) { return shr<16>(shl<16>(sums)); }
KVW_INLINE I32x16 second_half(I32x16 sums) { return shr<16>(sums); }

}  // namespace kvw::KVW_ISA
