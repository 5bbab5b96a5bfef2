// Writing K and V of one token and head into its block: rounding, rotation, integers. kv_codec.py says what and why.
#pragma once

#include "attention_kv.h"

namespace kvw::KVW_ISA {

// ---- The rotation of x [padded head_dim], not normalized: applied twice it is a factor of rotation_run.

constexpr int rotation_run(int head_dim) { return head_dim & -head_dim; }

// Lane i becomes x[i] + x[i ^ n] where bit n of i is clear, x[i ^ n] - x[i] where it is set.
template <int n>
KVW_INLINE F32x16 butterfly(F32x16 x) {
  static constexpr auto signs = [] {
    struct {
      float lane[16];
    } s{};
    for (int i = 0; i < 16; ++i) s.lane[i] = i & n ? -1.0f : 1.0f;
    return s;
  }();
  return fma(x, load(signs.lane), swap_lanes<n>(x));
}

// A head of N vectors that is one run, in registers.
template <int N>
KVW_INLINE void rotate_whole(float* x) {
  F32x16 v[N];
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) v[i] = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(load(x + 16 * i)))));
#pragma GCC unroll 3
  for (int stride = 1; stride < N; stride *= 2)
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      if (i & stride) continue;
      const F32x16 first = v[i], second = v[i + stride];
      v[i] = add(first, second);
      v[i + stride] = sub(first, second);
    }
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) store(x + 16 * i, v[i]);
}

static inline void rotate(float* x, int head_dim) {
  if (head_dim == 64) return rotate_whole<4>(x);
  if (head_dim == 128) return rotate_whole<8>(x);
  const int run = rotation_run(head_dim);
  for (int i = 0; i < head_dim; i += 16) {
    F32x16 v = load(x + i);
    if (run > 1) v = butterfly<1>(v);
    if (run > 2) v = butterfly<2>(v);
    if (run > 4) v = butterfly<4>(v);
    if (run > 8) v = butterfly<8>(v);
    store(x + i, v);
  }
  for (int stride = 16; stride < run; stride *= 2)
    for (int i = 0; i < head_dim; i += 16) {
      if (i & stride) continue;
      const F32x16 first = load(x + i), second = load(x + i + stride);
      store(x + i, add(first, second));
      store(x + i + stride, sub(first, second));
    }
}

// x [n] as [padded n], zeros past the end.
KVW_INLINE void copy_padded(const float* x, int n, float* to) {
  for (int i = 0; i < n; i += 16) store(to + i, load_n(x + i, n - i < 16 ? n - i : 16));
}

// max |x|; no finite number where there is any such.
KVW_INLINE float largest_of(const float* x, int padded) {
  I32x16 magnitudes = set1_i32(0);  // compare as integers, where a NaN is above infinity
  for (int i = 0; i < padded; i += 16) magnitudes = max(magnitudes, as_i32(abs(load(x + i))));
  const int32_t bits = max_of(magnitudes);
  float largest;
  std::memcpy(&largest, &bits, sizeof largest);
  return largest;
}
KVW_INLINE bool is_finite(float x) { return x - x == 0.0f; }

// ---- Floats: a token's K is one element of each row, so it is written one by one.

template <class Stored>
KVW_INLINE void write_floats(const AttentionArgs& a, uint8_t* block, int offset, const float* key, const float* value) {
  Stored row[kMaxHeadDim];
  const int dim = a.head_dim;
  Stored* const k = reinterpret_cast<Stored*>(block);
  Stored* const v = reinterpret_cast<Stored*>(value_block(a, block)) + static_cast<int64_t>(offset) * dim;
  for (int i = 0; i < dim; i += 16) {
    const int lanes = dim - i < 16 ? dim - i : 16;
    store_n(row + i, load_n(key + i, lanes), lanes);
    store_n(v + i, load_n(value + i, lanes), lanes);
  }
  for (int i = 0; i < dim; ++i) k[16 * i + offset] = row[i];
}
KVW_INLINE void write_head(KvF32, const AttentionArgs& a, uint8_t* block, int offset, const float* k, const float* v) {
  write_floats<float>(a, block, offset, k, v);
}
KVW_INLINE void write_head(KvF16, const AttentionArgs& a, uint8_t* block, int offset, const float* k, const float* v) {
  write_floats<F16>(a, block, offset, k, v);
}
KVW_INLINE void write_head(KvBf16, const AttentionArgs& a, uint8_t* block, int offset, const float* k, const float* v) {
  write_floats<BF16>(a, block, offset, k, v);
}

// ---- Integers.

// x as float16, which is written, and as the float32 that this is again.
KVW_INLINE float as_scale(float x, F16* to) {
  F16 halves[16];
  float lanes[16];
  store(halves, set1(x));
  store(lanes, load(halves));
  *to = halves[0];
  return lanes[0];
}

// q [padded head_dim] in low..high, 0 past the head.
template <bool is_int8>
static inline void quantize_head(const float* x, int dim, F16* scale, int8_t* q) {
  float y[kMaxHeadDim];
  const int padded = padded_dim(dim);
  copy_padded(x, dim, y);
  rotate(y, dim);
  const float largest = largest_of(y, padded);
  float wide;
  if (is_int8) {
    wide = as_scale(largest / 127.0f, scale);
  } else {
    F32x16 most = zero();
    for (int i = 0; i < padded; i += 16) most = max(most, load(y + i));
    wide = as_scale((max_of(most) == largest ? largest : -largest) / -8.0f, scale);
  }
  const bool usable = wide != 0.0f && is_finite(wide);
  const F32x16 inverse = set1(usable ? 1.0f / wide : 0.0f);
  const F32x16 low = set1(is_int8 ? -127.0f : -8.0f), high = set1(is_int8 ? 127.0f : 7.0f);
  for (int i = 0; i < padded; i += 16) {
    // Clipping before rounding gives the same, and keeps to_i32 in range.
    store_i8(q + i, to_i32(usable ? max(low, min(high, mul(load(y + i), inverse))) : zero()));
  }
}

KVW_INLINE void write_head(KvInt8, const AttentionArgs& a, uint8_t* block, int offset, const float* key,
                           const float* value) {
  int8_t q[kMaxHeadDim];
  const int padded = padded_dim(a.head_dim);
  F16* const scales = block_scales(a, block);
  quantize_head<true>(key, a.head_dim, scales + offset, q);
  for (int i = 0; i < padded; i += 2) std::memcpy(block + 16 * i + 2 * offset, q + i, 2);
  quantize_head<true>(value, a.head_dim, scales + 16 + offset, q);
  uint8_t* const v = value_block(a, block) + offset / 2 * 2 * padded + offset % 2;
  for (int i = 0; i < padded; ++i) v[2 * i] = static_cast<uint8_t>(q[i]);
}
KVW_INLINE void write_head(KvInt4, const AttentionArgs& a, uint8_t* block, int offset, const float* key,
                           const float* value) {
  int8_t q[kMaxHeadDim];
  const int padded = padded_dim(a.head_dim);
  const auto nibbles = [](int8_t low, int8_t high) { return static_cast<uint8_t>((low + 8) | (high + 8) << 4); };
  F16* const scales = block_scales(a, block);
  quantize_head<false>(key, a.head_dim, scales + offset, q);
  for (int i = 0; i < padded; i += 4)
    for (int e = 0; e < 2; ++e) block[8 * i + 2 * offset + e] = nibbles(q[i + e], q[i + 2 + e]);
  quantize_head<false>(value, a.head_dim, scales + 16 + offset, q);
  uint8_t* const v = value_block(a, block) + offset / 2 * padded + offset % 2;
  for (int i = 0; i < padded; i += 16)
    for (int e = 0; e < 8; ++e) v[i + 2 * e] = nibbles(q[i + e], q[i + 8 + e]);
}

}  // namespace kvw::KVW_ISA
