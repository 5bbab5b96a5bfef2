// AVX2 with FMA and F16C: F32x16 is two registers. Contract in vec.h.
#pragma once

#include <immintrin.h>

namespace kvw::KVW_ISA {

struct F32x16 {
  __m256 lo, hi;
};
struct I32x16 {
  __m256i lo, hi;
};
struct Mask16 {
  __m256 lo, hi;  // all ones where true
};

KVW_INLINE I32x16 lane_mask(int n) {
  const __m256i limit = _mm256_set1_epi32(n);
  const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i high = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
  return {_mm256_cmpgt_epi32(limit, low), _mm256_cmpgt_epi32(limit, high)};
}

KVW_INLINE F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
KVW_INLINE void store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
KVW_INLINE F32x16 load_n(const float* p, int n) {
  const I32x16 m = lane_mask(n);
  return {_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}
KVW_INLINE void store_n(float* p, F32x16 x, int n) {
  const I32x16 m = lane_mask(n);
  _mm256_maskstore_ps(p, m.lo, x.lo);
  _mm256_maskstore_ps(p + 8, m.hi, x.hi);
}

KVW_INLINE F32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
KVW_INLINE F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
KVW_INLINE F32x16 add(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
KVW_INLINE F32x16 sub(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
KVW_INLINE F32x16 mul(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
KVW_INLINE F32x16 div(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
KVW_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
KVW_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
KVW_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
KVW_INLINE F32x16 sqrt(F32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
KVW_INLINE F32x16 abs(F32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
KVW_INLINE F32x16 neg(F32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}
KVW_INLINE F32x16 copysign(F32x16 magnitude, F32x16 sign) {
  const __m256 s = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(s, magnitude.lo), _mm256_and_ps(s, sign.lo)),
          _mm256_or_ps(_mm256_andnot_ps(s, magnitude.hi), _mm256_and_ps(s, sign.hi))};
}

KVW_INLINE I32x16 load_i32(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
KVW_INLINE void store_i32(int32_t* p, I32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.hi);
}
KVW_INLINE I32x16 load_i8(const int8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(x, x))};
}
KVW_INLINE void store_i8(int8_t* p, I32x16 x) {
  // The low byte of each 32-bit lane to the front of its 128-bit half, then the four halves together.
  const __m256i low_bytes = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                             0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i a = _mm256_shuffle_epi8(x.lo, low_bytes);
  const __m256i b = _mm256_shuffle_epi8(x.hi, low_bytes);
  const __m128i first = _mm_unpacklo_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  const __m128i second = _mm_unpacklo_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_unpacklo_epi64(first, second));
}
KVW_INLINE I32x16 set1_i32(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
KVW_INLINE I32x16 add(I32x16 a, I32x16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
KVW_INLINE I32x16 sub(I32x16 a, I32x16 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
KVW_INLINE I32x16 max(I32x16 a, I32x16 b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
KVW_INLINE I32x16 bit_and(I32x16 a, I32x16 b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
KVW_INLINE I32x16 mul(I32x16 a, I32x16 b) { return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)}; }
template <int n>
KVW_INLINE I32x16 shl(I32x16 a) {
  return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}
template <int n>
KVW_INLINE I32x16 shr(I32x16 a) {
  return {_mm256_srai_epi32(a.lo, n), _mm256_srai_epi32(a.hi, n)};
}
KVW_INLINE F32x16 to_f32(I32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
KVW_INLINE I32x16 to_i32(F32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
KVW_INLINE F32x16 as_f32(I32x16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
KVW_INLINE I32x16 as_i32(F32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }

KVW_INLINE F32x16 scale_by_power(F32x16 a, F32x16 n) {
  return mul(a, as_f32(shl<23>(add(to_i32(n), set1_i32(127)))));
}

KVW_INLINE Mask16 lanes_below(int n) {
  const I32x16 m = lane_mask(n);
  return {_mm256_castsi256_ps(m.lo), _mm256_castsi256_ps(m.hi)};
}
KVW_INLINE Mask16 less(F32x16 a, F32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
KVW_INLINE F32x16 select(Mask16 m, F32x16 a, F32x16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}

KVW_INLINE __m128i load_8x16(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
KVW_INLINE void store_8x16(uint16_t* p, __m128i x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x); }
KVW_INLINE __m256 widen_bf16(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
KVW_INLINE __m256i rounded_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}

KVW_INLINE F32x16 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(load_8x16(p)), _mm256_cvtph_ps(load_8x16(p + 8))};
}
KVW_INLINE F32x16 load_bf16(const uint16_t* p) { return {widen_bf16(load_8x16(p)), widen_bf16(load_8x16(p + 8))}; }
KVW_INLINE void store_f16(uint16_t* p, F32x16 x) {
  store_8x16(p, _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  store_8x16(p + 8, _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
KVW_INLINE void store_bf16(uint16_t* p, F32x16 x) {
  // packus works within 128-bit halves; the permute puts the quarters back in order.
  const __m256i packed = _mm256_packus_epi32(rounded_bf16(x.lo), rounded_bf16(x.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}
KVW_INLINE F32x16 load_f16_n(const uint16_t* p, int n) {
  uint16_t whole[16] = {};
  std::memcpy(whole, p, 2 * static_cast<size_t>(n));
  return load_f16(whole);
}
KVW_INLINE F32x16 load_bf16_n(const uint16_t* p, int n) {
  uint16_t whole[16] = {};
  std::memcpy(whole, p, 2 * static_cast<size_t>(n));
  return load_bf16(whole);
}
KVW_INLINE void store_f16_n(uint16_t* p, F32x16 x, int n) {
  uint16_t whole[16];
  store_f16(whole, x);
  std::memcpy(p, whole, 2 * static_cast<size_t>(n));
}
KVW_INLINE void store_bf16_n(uint16_t* p, F32x16 x, int n) {
  uint16_t whole[16];
  store_bf16(whole, x);
  std::memcpy(p, whole, 2 * static_cast<size_t>(n));
}

template <int n>
KVW_INLINE F32x16 swap_lanes(F32x16 x) {
  if constexpr (n == 1) return {_mm256_permute_ps(x.lo, 0xB1), _mm256_permute_ps(x.hi, 0xB1)};
  if constexpr (n == 2) return {_mm256_permute_ps(x.lo, 0x4E), _mm256_permute_ps(x.hi, 0x4E)};
  if constexpr (n == 4) return {_mm256_permute2f128_ps(x.lo, x.lo, 1), _mm256_permute2f128_ps(x.hi, x.hi, 1)};
  if constexpr (n == 8) return {x.hi, x.lo};
}

KVW_INLINE float sum(F32x16 x) {
  const __m256 s8 = _mm256_add_ps(x.lo, x.hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
KVW_INLINE float max_of(F32x16 x) {
  const __m256 s8 = _mm256_max_ps(x.lo, x.hi);
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}
KVW_INLINE int32_t max_of(I32x16 x) {
  const __m256i m8 = _mm256_max_epi32(x.lo, x.hi);
  const __m128i m4 = _mm_max_epi32(_mm256_castsi256_si128(m8), _mm256_extracti128_si256(m8, 1));
  const __m128i m2 = _mm_max_epi32(m4, _mm_shuffle_epi32(m4, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(m2, _mm_shuffle_epi32(m2, 0xB1)));
}
KVW_INLINE int32_t sum(I32x16 x) {
  const __m256i s8 = _mm256_add_epi32(x.lo, x.hi);
  const __m128i s4 = _mm_add_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
  const __m128i s2 = _mm_add_epi32(s4, _mm_shuffle_epi32(s4, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(s2, _mm_shuffle_epi32(s2, 0xB1)));
}

}  // namespace kvw::KVW_ISA
