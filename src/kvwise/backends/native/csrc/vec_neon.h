// NEON on aarch64: F32x16 is four registers. Contract in vec.h.
#pragma once

#include <arm_neon.h>

namespace kvw::KVW_ISA {

struct F32x16 {
  float32x4_t q[4];
};
struct I32x16 {
  int32x4_t q[4];
};
struct Mask16 {
  uint32x4_t q[4];  // all ones where true
};

#define KVW_QUADS(type, expression)                    \
  type r;                                              \
  for (int i = 0; i < 4; ++i) r.q[i] = (expression);   \
  return r

KVW_INLINE F32x16 load(const float* p) { KVW_QUADS(F32x16, vld1q_f32(p + 4 * i)); }
KVW_INLINE void store(float* p, F32x16 x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.q[i]);
}
KVW_INLINE F32x16 load_n(const float* p, int n) {
  float whole[16] = {};
  std::memcpy(whole, p, 4 * static_cast<size_t>(n));
  return load(whole);
}
KVW_INLINE void store_n(float* p, F32x16 x, int n) {
  float whole[16];
  store(whole, x);
  std::memcpy(p, whole, 4 * static_cast<size_t>(n));
}

KVW_INLINE F32x16 set1(float x) { KVW_QUADS(F32x16, vdupq_n_f32(x)); }
KVW_INLINE F32x16 zero() { return set1(0.0f); }
KVW_INLINE F32x16 add(F32x16 a, F32x16 b) { KVW_QUADS(F32x16, vaddq_f32(a.q[i], b.q[i])); }
KVW_INLINE F32x16 sub(F32x16 a, F32x16 b) { KVW_QUADS(F32x16, vsubq_f32(a.q[i], b.q[i])); }
KVW_INLINE F32x16 mul(F32x16 a, F32x16 b) { KVW_QUADS(F32x16, vmulq_f32(a.q[i], b.q[i])); }
KVW_INLINE F32x16 div(F32x16 a, F32x16 b) { KVW_QUADS(F32x16, vdivq_f32(a.q[i], b.q[i])); }
KVW_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { KVW_QUADS(F32x16, vfmaq_f32(c.q[i], a.q[i], b.q[i])); }
// Compare and select, because vmaxq gives NaN where x86 gives b.
KVW_INLINE F32x16 max(F32x16 a, F32x16 b) {
  KVW_QUADS(F32x16, vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]));
}
KVW_INLINE F32x16 min(F32x16 a, F32x16 b) {
  KVW_QUADS(F32x16, vbslq_f32(vcltq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]));
}
KVW_INLINE F32x16 sqrt(F32x16 a) { KVW_QUADS(F32x16, vsqrtq_f32(a.q[i])); }
KVW_INLINE F32x16 abs(F32x16 a) { KVW_QUADS(F32x16, vabsq_f32(a.q[i])); }
KVW_INLINE F32x16 neg(F32x16 a) { KVW_QUADS(F32x16, vnegq_f32(a.q[i])); }
KVW_INLINE F32x16 copysign(F32x16 magnitude, F32x16 sign) {
  KVW_QUADS(F32x16, vbslq_f32(vdupq_n_u32(0x80000000u), sign.q[i], magnitude.q[i]));
}

KVW_INLINE I32x16 load_i32(const int32_t* p) { KVW_QUADS(I32x16, vld1q_s32(p + 4 * i)); }
KVW_INLINE void store_i32(int32_t* p, I32x16 x) {
  for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, x.q[i]);
}
KVW_INLINE I32x16 load_i8(const int8_t* p) {
  const int8x16_t x = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_s8(vget_high_s8(x));
  return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
           vmovl_s16(vget_high_s16(high))}};
}
KVW_INLINE void store_i8(int8_t* p, I32x16 x) {
  const int16x8_t low = vcombine_s16(vmovn_s32(x.q[0]), vmovn_s32(x.q[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32(x.q[2]), vmovn_s32(x.q[3]));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
KVW_INLINE I32x16 set1_i32(int32_t x) { KVW_QUADS(I32x16, vdupq_n_s32(x)); }
KVW_INLINE I32x16 add(I32x16 a, I32x16 b) { KVW_QUADS(I32x16, vaddq_s32(a.q[i], b.q[i])); }
KVW_INLINE I32x16 sub(I32x16 a, I32x16 b) { KVW_QUADS(I32x16, vsubq_s32(a.q[i], b.q[i])); }
KVW_INLINE I32x16 max(I32x16 a, I32x16 b) { KVW_QUADS(I32x16, vmaxq_s32(a.q[i], b.q[i])); }
KVW_INLINE I32x16 bit_and(I32x16 a, I32x16 b) { KVW_QUADS(I32x16, vandq_s32(a.q[i], b.q[i])); }
KVW_INLINE I32x16 mul(I32x16 a, I32x16 b) { KVW_QUADS(I32x16, vmulq_s32(a.q[i], b.q[i])); }
template <int n>
KVW_INLINE I32x16 shl(I32x16 a) {
  KVW_QUADS(I32x16, vshlq_n_s32(a.q[i], n));
}
template <int n>
KVW_INLINE I32x16 shr(I32x16 a) {
  KVW_QUADS(I32x16, vshrq_n_s32(a.q[i], n));
}
KVW_INLINE F32x16 to_f32(I32x16 a) { KVW_QUADS(F32x16, vcvtq_f32_s32(a.q[i])); }
KVW_INLINE I32x16 to_i32(F32x16 a) { KVW_QUADS(I32x16, vcvtnq_s32_f32(a.q[i])); }
KVW_INLINE F32x16 as_f32(I32x16 a) { KVW_QUADS(F32x16, vreinterpretq_f32_s32(a.q[i])); }
KVW_INLINE I32x16 as_i32(F32x16 a) { KVW_QUADS(I32x16, vreinterpretq_s32_f32(a.q[i])); }

KVW_INLINE F32x16 scale_by_power(F32x16 a, F32x16 n) {
  return mul(a, as_f32(shl<23>(add(to_i32(n), set1_i32(127)))));
}

KVW_INLINE Mask16 lanes_below(int n) {
  const int32_t lane[4] = {0, 1, 2, 3};
  const int32x4_t first = vld1q_s32(lane);
  KVW_QUADS(Mask16, vcltq_s32(vaddq_s32(first, vdupq_n_s32(4 * i)), vdupq_n_s32(n)));
}
KVW_INLINE Mask16 less(F32x16 a, F32x16 b) { KVW_QUADS(Mask16, vcltq_f32(a.q[i], b.q[i])); }
KVW_INLINE F32x16 select(Mask16 m, F32x16 a, F32x16 b) { KVW_QUADS(F32x16, vbslq_f32(m.q[i], a.q[i], b.q[i])); }

KVW_INLINE F32x16 load_f16(const uint16_t* p) {
  KVW_QUADS(F32x16, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
KVW_INLINE F32x16 load_bf16(const uint16_t* p) {
  KVW_QUADS(F32x16, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}
KVW_INLINE void store_f16(uint16_t* p, F32x16 x) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.q[i])));
}
KVW_INLINE void store_bf16(uint16_t* p, F32x16 x) {
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x.q[i]);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    const uint32x4_t number = vceqq_f32(x.q[i], x.q[i]);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
    vst1_u16(p + 4 * i, vshrn_n_u32(vbslq_u32(number, rounded, quiet), 16));
  }
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
  if constexpr (n == 1) {
    KVW_QUADS(F32x16, vrev64q_f32(x.q[i]));
  } else if constexpr (n == 2) {
    KVW_QUADS(F32x16, vextq_f32(x.q[i], x.q[i], 2));
  } else {
    KVW_QUADS(F32x16, x.q[i ^ (n / 4)]);
  }
}

#undef KVW_QUADS

KVW_INLINE float sum(F32x16 x) {
  const float32x4_t s4 = vaddq_f32(vaddq_f32(x.q[0], x.q[2]), vaddq_f32(x.q[1], x.q[3]));
  const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
  return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}
KVW_INLINE float max_of(F32x16 x) {
  float lane[16];
  store(lane, x);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
  return lane[0];
}
KVW_INLINE int32_t max_of(I32x16 x) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.q[0], x.q[1]), vmaxq_s32(x.q[2], x.q[3])));
}
KVW_INLINE int32_t sum(I32x16 x) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(x.q[0], x.q[1]), vaddq_s32(x.q[2], x.q[3])));
}

}  // namespace kvw::KVW_ISA
