// How one head of a block is read and written in each KV type; kernel_table.h draws the layouts. Knows no spans.
#pragma once

#include "kernel_table.h"
#include "vec.h"

namespace kvw::KVW_ISA {

// Storage types of integers, as tags like F16 and BF16: load(p) gives 16 elements as float32, not yet scaled.
struct KvInt8 {
  int8_t q;
};
struct KvInt4 {
  uint8_t pair;
};
template <class T>
constexpr int kPacked = 1;  // elements in one T
template <>
inline constexpr int kPacked<KvInt4> = 2;
template <class T>
constexpr bool kScaled = false;  // integers of rotated heads, with a scale per token
template <>
inline constexpr bool kScaled<KvInt8> = true;
template <>
inline constexpr bool kScaled<KvInt4> = true;
template <class T>
constexpr int kKeyRows = kPacked<T>;  // rows of K that are loaded together

KVW_INLINE F32x16 load(const KvInt8* p) { return to_f32(load_i8(&p->q)); }
KVW_INLINE F32x16 load(const KvInt4* p) { return load_i4(&p->pair); }

// Rows d .. d + kKeyRows of K, 16 tokens each; d is a multiple of kKeyRows.
template <class T>
KVW_INLINE void load_keys(const T* k, int64_t d, F32x16 (&rows)[1]) {
  rows[0] = load(k + 16 * d);
}
KVW_INLINE void load_keys(const KvInt4* k, int64_t d, F32x16 (&rows)[2]) {
  load_i4_pairs(&k[8 * d].pair, rows[0], rows[1]);
}

KVW_INLINE constexpr int padded_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }

// Elements from one token's V to the next one's.
template <class T>
KVW_INLINE int value_stride(int head_dim) {
  return kScaled<T> ? padded_dim(head_dim) : head_dim;
}

template <class T>
KVW_INLINE T* key_block(const AttentionArgs& a, int block, int kv_head) {
  const size_t offset = static_cast<size_t>(block) * a.block_bytes + kv_head * kv_head_bytes(a.kv_type, a.head_dim);
  return reinterpret_cast<T*>(a.kv + offset);
}
template <class T>
KVW_INLINE T* value_block(const AttentionArgs& a, T* k) {
  return k + kv_half_bytes(a.kv_type, a.head_dim) / sizeof(T);
}
// [2][16 tokens]: of K, then of V.
KVW_INLINE F16* block_scales(const AttentionArgs& a, int block, int kv_head) {
  uint8_t* const k = key_block<uint8_t>(a, block, kv_head);
  return reinterpret_cast<F16*>(k + 2 * kv_half_bytes(a.kv_type, a.head_dim));
}

// ---- The rotation: kv_codec.py says what and why. x [padded head_dim], not normalized.

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

static inline void rotate(float* x, int head_dim) {
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

// ---- Writing. A token's K is one element of each row, so it is written one by one.

template <class T>
KVW_INLINE void write_head(const AttentionArgs& a, int block, int kv_head, int offset, const float* key,
                           const float* value) {
  T row[kMaxHeadDim];
  const int dim = a.head_dim;
  T* const k = key_block<T>(a, block, kv_head);
  T* const v = value_block(a, k) + static_cast<int64_t>(offset) * dim;
  for (int i = 0; i < dim; i += 16) {
    const int lanes = dim - i < 16 ? dim - i : 16;
    store_n(row + i, load_n(key + i, lanes), lanes);
    store_n(v + i, load_n(value + i, lanes), lanes);
  }
  for (int i = 0; i < dim; ++i) k[16 * i + offset] = row[i];
}

KVW_INLINE float as_scale(float x, F16* to) {
  store_n(to, set1(x), 1);
  float lanes[16];
  store(lanes, load_n(to, 1));
  return lanes[0];
}

// The integers of one head, kv_codec.py's to the bit: q [padded head_dim], in low..high; 0 past the head.
template <class T>
static inline void quantize_head(const float* x, int dim, F16* scale, int8_t* q) {
  constexpr bool is_int8 = sizeof(T) == 1 && kPacked<T> == 1;
  float y[kMaxHeadDim];
  const int padded = padded_dim(dim);
  for (int i = 0; i < padded; i += 16) store(y + i, load_n(x + i, dim - i < 16 ? dim - i : 16));
  rotate(y, dim);
  I32x16 magnitudes = set1_i32(0);  // compare as integers, where a NaN is above infinity
  F32x16 most = zero();
  for (int i = 0; i < padded; i += 16) {
    magnitudes = max(magnitudes, as_i32(abs(load(y + i))));
    most = max(most, load(y + i));
  }
  const int32_t bits = max_of(magnitudes);
  float largest;
  std::memcpy(&largest, &bits, sizeof largest);
  const float extreme = max_of(most) == largest ? largest : -largest;
  const float wide = as_scale(is_int8 ? largest / 127.0f : extreme / -8.0f, scale);
  const bool usable = wide != 0.0f && wide - wide == 0.0f;
  const F32x16 inverse = set1(usable ? 1.0f / wide : 0.0f);
  const F32x16 low = set1(is_int8 ? -127.0f : -8.0f), high = set1(is_int8 ? 127.0f : 7.0f);
  for (int i = 0; i < padded; i += 16) {
    // Clipping before rounding gives the same, and keeps to_i32 in range.
    const F32x16 nearest = usable ? max(low, min(high, mul(load(y + i), inverse))) : zero();
    store_i8(q + i, to_i32(nearest));
  }
}

KVW_INLINE void write_integers(const int8_t* key, const int8_t* value, KvInt8* k, KvInt8* v, int offset, int padded) {
  for (int i = 0; i < padded; ++i) k[16 * i + offset].q = key[i];
  std::memcpy(v + offset * padded, value, static_cast<size_t>(padded));
}
KVW_INLINE void write_integers(const int8_t* key, const int8_t* value, KvInt4* k, KvInt4* v, int offset, int padded) {
  const auto pair = [](int8_t low, int8_t high) { return static_cast<uint8_t>((low + 8) | (high + 8) << 4); };
  for (int i = 0; i < padded / 2; ++i) k[16 * i + offset].pair = pair(key[2 * i], key[2 * i + 1]);
  for (int j = 0; j < padded / 16; ++j)
    for (int i = 0; i < 8; ++i)
      v[(offset * padded + 16 * j) / 2 + i].pair = pair(value[16 * j + i], value[16 * j + 8 + i]);
}
template <class T>
  requires kScaled<T>
KVW_INLINE void write_head(const AttentionArgs& a, int block, int kv_head, int offset, const float* key,
                           const float* value) {
  int8_t quantized[2][kMaxHeadDim];
  F16* const scales = block_scales(a, block, kv_head);
  quantize_head<T>(key, a.head_dim, scales + offset, quantized[0]);
  quantize_head<T>(value, a.head_dim, scales + 16 + offset, quantized[1]);
  T* const k = key_block<T>(a, block, kv_head);
  write_integers(quantized[0], quantized[1], k, value_block(a, k), offset, padded_dim(a.head_dim));
}

}  // namespace kvw::KVW_ISA
