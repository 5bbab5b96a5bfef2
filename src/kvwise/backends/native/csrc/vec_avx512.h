// AVX-512 (F, BW, VL, DQ): F32x16 is one register. Contract in vec.h.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the deliberately undefined operands inside its own intrinsics for a mistake (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

namespace kvw::KVW_ISA {

struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};
struct Mask16 {
  __mmask16 m;
};

KVW_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

KVW_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
KVW_INLINE void store(float* p, F32x16 x) { _mm512_storeu_ps(p, x.v); }
KVW_INLINE F32x16 load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
KVW_INLINE void store_n(float* p, F32x16 x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x.v); }

KVW_INLINE F32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
KVW_INLINE F32x16 zero() { return {_mm512_setzero_ps()}; }
KVW_INLINE F32x16 add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
KVW_INLINE F32x16 sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
KVW_INLINE F32x16 mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
KVW_INLINE F32x16 div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
KVW_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
KVW_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
KVW_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
KVW_INLINE F32x16 sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
KVW_INLINE F32x16 abs(F32x16 a) { return {_mm512_abs_ps(a.v)}; }
KVW_INLINE F32x16 neg(F32x16 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
KVW_INLINE F32x16 copysign(F32x16 magnitude, F32x16 sign) {
  const __m512i s = _mm512_set1_epi32(INT32_MIN);
  // 0xCA: s ? sign : magnitude, bit by bit
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(s, _mm512_castps_si512(sign.v),
                                                        _mm512_castps_si512(magnitude.v), 0xCA))};
}

KVW_INLINE I32x16 load_i32(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
KVW_INLINE void store_i32(int32_t* p, I32x16 x) { _mm512_storeu_si512(p, x.v); }
KVW_INLINE I32x16 load_i8(const int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
KVW_INLINE void store_i8(int8_t* p, I32x16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}
KVW_INLINE I32x16 set1_i32(int32_t x) { return {_mm512_set1_epi32(x)}; }
KVW_INLINE I32x16 add(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
KVW_INLINE I32x16 sub(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
KVW_INLINE I32x16 max(I32x16 a, I32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
KVW_INLINE I32x16 bit_and(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
KVW_INLINE I32x16 mul(I32x16 a, I32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
template <int n>
KVW_INLINE I32x16 shl(I32x16 a) {
  return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
KVW_INLINE I32x16 shr(I32x16 a) {
  return {_mm512_srai_epi32(a.v, n)};
}
KVW_INLINE F32x16 to_f32(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
KVW_INLINE I32x16 to_i32(F32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
KVW_INLINE F32x16 as_f32(I32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
KVW_INLINE I32x16 as_i32(F32x16 a) { return {_mm512_castps_si512(a.v)}; }

KVW_INLINE F32x16 scale_by_power(F32x16 a, F32x16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }

KVW_INLINE Mask16 lanes_below(int n) { return {first_lanes(n)}; }
KVW_INLINE Mask16 less(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
KVW_INLINE F32x16 select(Mask16 m, F32x16 a, F32x16 b) { return {_mm512_mask_blend_ps(m.m, b.v, a.v)}; }

KVW_INLINE F32x16 widen_f16(__m256i x) { return {_mm512_cvtph_ps(x)}; }
KVW_INLINE F32x16 widen_bf16(__m256i x) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))};
}
KVW_INLINE __m256i narrow_f16(F32x16 x) {
  return _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
KVW_INLINE __m256i narrow_bf16(F32x16 x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}
KVW_INLINE __m256i load_16x16(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
KVW_INLINE void store_16x16(uint16_t* p, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }

KVW_INLINE F32x16 load_f16(const uint16_t* p) { return widen_f16(load_16x16(p)); }
KVW_INLINE F32x16 load_bf16(const uint16_t* p) { return widen_bf16(load_16x16(p)); }
KVW_INLINE F32x16 load_f16_n(const uint16_t* p, int n) {
  return widen_f16(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
KVW_INLINE F32x16 load_bf16_n(const uint16_t* p, int n) {
  return widen_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
KVW_INLINE void store_f16(uint16_t* p, F32x16 x) { store_16x16(p, narrow_f16(x)); }
KVW_INLINE void store_bf16(uint16_t* p, F32x16 x) { store_16x16(p, narrow_bf16(x)); }
KVW_INLINE void store_f16_n(uint16_t* p, F32x16 x, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), narrow_f16(x));
}
KVW_INLINE void store_bf16_n(uint16_t* p, F32x16 x, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), narrow_bf16(x));
}

template <int n>
KVW_INLINE F32x16 swap_lanes(F32x16 x) {
  if constexpr (n == 1) return {_mm512_permute_ps(x.v, 0xB1)};
  if constexpr (n == 2) return {_mm512_permute_ps(x.v, 0x4E)};
  if constexpr (n == 4) return {_mm512_shuffle_f32x4(x.v, x.v, 0xB1)};
  if constexpr (n == 8) return {_mm512_shuffle_f32x4(x.v, x.v, 0x4E)};
}

KVW_INLINE float sum(F32x16 x) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
KVW_INLINE float max_of(F32x16 x) {
  const __m256 s8 = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}
KVW_INLINE int32_t max_of(I32x16 x) {
  const __m256i m8 = _mm256_max_epi32(_mm512_castsi512_si256(x.v), _mm512_extracti32x8_epi32(x.v, 1));
  const __m128i m4 = _mm_max_epi32(_mm256_castsi256_si128(m8), _mm256_extracti128_si256(m8, 1));
  const __m128i m2 = _mm_max_epi32(m4, _mm_shuffle_epi32(m4, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(m2, _mm_shuffle_epi32(m2, 0xB1)));
}
KVW_INLINE int32_t sum(I32x16 x) {
  const __m256i s8 = _mm256_add_epi32(_mm512_castsi512_si256(x.v), _mm512_extracti32x8_epi32(x.v, 1));
  const __m128i s4 = _mm_add_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
  const __m128i s2 = _mm_add_epi32(s4, _mm_shuffle_epi32(s4, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(s2, _mm_shuffle_epi32(s2, 0xB1)));
}

}  // namespace kvw::KVW_ISA
