// No instruction set beyond the platform's baseline: F32x16 is an array. The oracle of the others. Contract in vec.h.
#pragma once

namespace kvw::KVW_ISA {

struct F32x16 {
  float lane[16];
};
struct I32x16 {
  int32_t lane[16];
};
struct Mask16 {
  bool lane[16];
};

KVW_INLINE float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
KVW_INLINE uint32_t to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

KVW_INLINE float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 1023u;
  if (exponent == 31) return from_bits(sign | 0x7F800000u | fraction << 13 | (fraction ? 0x00400000u : 0u));
  if (exponent == 0) return from_bits(sign | to_bits(static_cast<float>(fraction) * 0x1p-24f));
  return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}
KVW_INLINE uint16_t f32_to_f16(float x) {
  const uint32_t bits = to_bits(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  uint32_t half;
  if (magnitude > 0x7F800000u) {
    half = 0x7E00u | (magnitude >> 13 & 0x3FFu);
  } else if (magnitude >= 0x477FF000u) {  // 65520 and above round to infinity
    half = 0x7C00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to multiples of 2^-24, its last place
    half = to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f);
  } else {
    half = (magnitude - (112u << 23) + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}
KVW_INLINE float bf16_to_f32(uint16_t h) { return from_bits(static_cast<uint32_t>(h) << 16); }
KVW_INLINE uint16_t f32_to_bf16(float x) {
  const uint32_t bits = to_bits(x);
  if (x != x) return static_cast<uint16_t>((bits | 0x00400000u) >> 16);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}
KVW_INLINE int32_t nearest_i32(float x) {
  // The sum's last place is 1, so that the addition rounds to nearest even and leaves the integer in the low bits.
  const double shifted = static_cast<double>(x) + 0x1.8p52;
  int64_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  return static_cast<int32_t>(bits);
}
KVW_INLINE float exact_sqrt(float x) { return __builtin_sqrtf(x); }

#define KVW_LANES(type, expression)           \
  type r;                                     \
  for (int i = 0; i < 16; ++i) r.lane[i] = (expression); \
  return r

KVW_INLINE F32x16 load_n(const float* p, int n) { KVW_LANES(F32x16, i < n ? p[i] : 0.0f); }
KVW_INLINE void store_n(float* p, F32x16 x, int n) {
  for (int i = 0; i < n; ++i) p[i] = x.lane[i];
}
KVW_INLINE F32x16 load(const float* p) { KVW_LANES(F32x16, p[i]); }
KVW_INLINE void store(float* p, F32x16 x) { store_n(p, x, 16); }

KVW_INLINE F32x16 set1(float x) { KVW_LANES(F32x16, x); }
KVW_INLINE F32x16 zero() { return set1(0.0f); }
KVW_INLINE F32x16 add(F32x16 a, F32x16 b) { KVW_LANES(F32x16, a.lane[i] + b.lane[i]); }
KVW_INLINE F32x16 sub(F32x16 a, F32x16 b) { KVW_LANES(F32x16, a.lane[i] - b.lane[i]); }
KVW_INLINE F32x16 mul(F32x16 a, F32x16 b) { KVW_LANES(F32x16, a.lane[i] * b.lane[i]); }
KVW_INLINE F32x16 div(F32x16 a, F32x16 b) { KVW_LANES(F32x16, a.lane[i] / b.lane[i]); }
KVW_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  KVW_LANES(F32x16, __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]));
}
KVW_INLINE F32x16 max(F32x16 a, F32x16 b) { KVW_LANES(F32x16, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]); }
KVW_INLINE F32x16 min(F32x16 a, F32x16 b) { KVW_LANES(F32x16, a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]); }
KVW_INLINE F32x16 sqrt(F32x16 a) { KVW_LANES(F32x16, exact_sqrt(a.lane[i])); }
KVW_INLINE F32x16 abs(F32x16 a) { KVW_LANES(F32x16, from_bits(to_bits(a.lane[i]) & 0x7FFFFFFFu)); }
KVW_INLINE F32x16 neg(F32x16 a) { KVW_LANES(F32x16, from_bits(to_bits(a.lane[i]) ^ 0x80000000u)); }
KVW_INLINE F32x16 copysign(F32x16 magnitude, F32x16 sign) {
  KVW_LANES(F32x16, from_bits((to_bits(magnitude.lane[i]) & 0x7FFFFFFFu) | (to_bits(sign.lane[i]) & 0x80000000u)));
}

KVW_INLINE I32x16 load_i32(const int32_t* p) { KVW_LANES(I32x16, p[i]); }
KVW_INLINE void store_i32(int32_t* p, I32x16 x) {
  for (int i = 0; i < 16; ++i) p[i] = x.lane[i];
}
KVW_INLINE I32x16 load_i8(const int8_t* p) { KVW_LANES(I32x16, p[i]); }
KVW_INLINE void store_i8(int8_t* p, I32x16 x) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(x.lane[i]);
}
KVW_INLINE I32x16 set1_i32(int32_t x) { KVW_LANES(I32x16, x); }
KVW_INLINE I32x16 add(I32x16 a, I32x16 b) { KVW_LANES(I32x16, a.lane[i] + b.lane[i]); }
KVW_INLINE I32x16 sub(I32x16 a, I32x16 b) { KVW_LANES(I32x16, a.lane[i] - b.lane[i]); }
KVW_INLINE I32x16 max(I32x16 a, I32x16 b) { KVW_LANES(I32x16, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]); }
KVW_INLINE I32x16 bit_and(I32x16 a, I32x16 b) { KVW_LANES(I32x16, a.lane[i] & b.lane[i]); }
KVW_INLINE I32x16 mul(I32x16 a, I32x16 b) { KVW_LANES(I32x16, a.lane[i] * b.lane[i]); }
template <int n>
KVW_INLINE I32x16 shl(I32x16 a) {
  KVW_LANES(I32x16, static_cast<int32_t>(static_cast<uint32_t>(a.lane[i]) << n));
}
template <int n>
KVW_INLINE I32x16 shr(I32x16 a) {
  KVW_LANES(I32x16, a.lane[i] >> n);
}
KVW_INLINE F32x16 to_f32(I32x16 a) { KVW_LANES(F32x16, static_cast<float>(a.lane[i])); }
KVW_INLINE I32x16 to_i32(F32x16 a) { KVW_LANES(I32x16, nearest_i32(a.lane[i])); }
KVW_INLINE F32x16 as_f32(I32x16 a) { KVW_LANES(F32x16, from_bits(static_cast<uint32_t>(a.lane[i]))); }
KVW_INLINE I32x16 as_i32(F32x16 a) { KVW_LANES(I32x16, static_cast<int32_t>(to_bits(a.lane[i]))); }

KVW_INLINE F32x16 scale_by_power(F32x16 a, F32x16 n) {
  return mul(a, as_f32(shl<23>(add(to_i32(n), set1_i32(127)))));
}

KVW_INLINE Mask16 lanes_below(int n) { KVW_LANES(Mask16, i < n); }
KVW_INLINE Mask16 less(F32x16 a, F32x16 b) { KVW_LANES(Mask16, a.lane[i] < b.lane[i]); }
KVW_INLINE F32x16 select(Mask16 m, F32x16 a, F32x16 b) { KVW_LANES(F32x16, m.lane[i] ? a.lane[i] : b.lane[i]); }

KVW_INLINE F32x16 load_f16_n(const uint16_t* p, int n) { KVW_LANES(F32x16, i < n ? f16_to_f32(p[i]) : 0.0f); }
KVW_INLINE F32x16 load_bf16_n(const uint16_t* p, int n) { KVW_LANES(F32x16, i < n ? bf16_to_f32(p[i]) : 0.0f); }
KVW_INLINE F32x16 load_f16(const uint16_t* p) { return load_f16_n(p, 16); }
KVW_INLINE F32x16 load_bf16(const uint16_t* p) { return load_bf16_n(p, 16); }
KVW_INLINE void store_f16_n(uint16_t* p, F32x16 x, int n) {
  for (int i = 0; i < n; ++i) p[i] = f32_to_f16(x.lane[i]);
}
KVW_INLINE void store_bf16_n(uint16_t* p, F32x16 x, int n) {
  for (int i = 0; i < n; ++i) p[i] = f32_to_bf16(x.lane[i]);
}
KVW_INLINE void store_f16(uint16_t* p, F32x16 x) { store_f16_n(p, x, 16); }
KVW_INLINE void store_bf16(uint16_t* p, F32x16 x) { store_bf16_n(p, x, 16); }

template <int n>
KVW_INLINE F32x16 swap_lanes(F32x16 x) {
  KVW_LANES(F32x16, x.lane[i ^ n]);
}

#undef KVW_LANES

KVW_INLINE float sum(F32x16 x) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x.lane[i] = x.lane[i] + x.lane[i + half];
  return x.lane[0];
}
KVW_INLINE float max_of(F32x16 x) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x.lane[i] = x.lane[i] > x.lane[i + half] ? x.lane[i] : x.lane[i + half];
  return x.lane[0];
}
KVW_INLINE int32_t max_of(I32x16 x) {
  int32_t most = x.lane[0];
  for (int i = 1; i < 16; ++i) most = x.lane[i] > most ? x.lane[i] : most;
  return most;
}
KVW_INLINE int32_t sum(I32x16 x) {
  int32_t total = 0;
  for (int i = 0; i < 16; ++i) total += x.lane[i];
  return total;
}

}  // namespace kvw::KVW_ISA
