// How one head of a block is read in each KV type, and the arithmetic that follows from the type; kernel_table.h draws
// the layouts. Knows no spans.
//
// Floats are multiplied as float32. Integers are multiplied in pairs, exactly: so are q and the weights of V, rounded
// to 16 bits.
#pragma once

#include "attention_pairs.h"
#include "kernel_table.h"

namespace kvw::KVW_ISA {

// A sum of products over units: a unit is one element of q or of the weights, a float32, or two, a pair of integers.
struct FloatMath {
  using Vec = F32x16;
  static constexpr int kTerms = 1;  // elements of a unit
  KVW_INLINE Vec nothing() { return zero(); }
  KVW_INLINE Vec broadcast(const float* unit) { return set1(*unit); }
  KVW_INLINE void add_product(Vec& acc, Vec unit, Vec stored) { acc = fma(unit, stored, acc); }
  KVW_INLINE Vec load_sums(const float* p) { return load(p); }
  KVW_INLINE void store_sums(float* p, Vec x) { store(p, x); }
  KVW_INLINE F32x16 as_float(Vec x) { return x; }
};
struct PairMath {
  using Vec = I32x16;
  static constexpr int kTerms = 2;
  KVW_INLINE Vec nothing() { return set1_i32(0); }
  KVW_INLINE Vec broadcast(const float* unit) {
    int32_t pair;
    std::memcpy(&pair, unit, sizeof pair);
    return set1_i32(pair);
  }
  KVW_INLINE void add_product(Vec& acc, Vec unit, Vec stored) { dot_pairs(acc, unit, stored); }
  KVW_INLINE Vec load_sums(const float* p) { return as_i32(load(p)); }
  KVW_INLINE void store_sums(float* p, Vec x) { store(p, as_f32(x)); }
  KVW_INLINE F32x16 as_float(Vec x) { return to_f32(x); }
};

// A format's vector: 16 lanes of a unit, tokens of K or elements of V. kKeyVectors of K are loaded together.
struct KvF32 : FloatMath {
  using Wide = KvF32;  // what it is converted to where many rows read it
  static constexpr int kBytes = 64, kKeyVectors = 1;
  KVW_INLINE F32x16 load_vector(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
  KVW_INLINE F32x16 load_first(const uint8_t* p, int n) { return load_n(reinterpret_cast<const float*>(p), n); }
};
struct KvF16 : FloatMath {
  using Wide = KvF32;
  static constexpr int kBytes = 32, kKeyVectors = 1;
  KVW_INLINE F32x16 load_vector(const uint8_t* p) { return load(reinterpret_cast<const F16*>(p)); }
  KVW_INLINE F32x16 load_first(const uint8_t* p, int n) { return load_n(reinterpret_cast<const F16*>(p), n); }
};
struct KvBf16 : FloatMath {
  using Wide = KvF32;
  static constexpr int kBytes = 32, kKeyVectors = 1;
  KVW_INLINE F32x16 load_vector(const uint8_t* p) { return load(reinterpret_cast<const BF16*>(p)); }
  KVW_INLINE F32x16 load_first(const uint8_t* p, int n) { return load_n(reinterpret_cast<const BF16*>(p), n); }
};
struct KvPairs : PairMath {  // in no pool: what integers are converted to
  using Wide = KvPairs;
  static constexpr int kBytes = 64, kKeyVectors = 1;
  KVW_INLINE I32x16 load_vector(const uint8_t* p) { return as_i32(load(reinterpret_cast<const float*>(p))); }
};
struct KvInt8 : PairMath {
  using Wide = KvPairs;
  static constexpr int kBytes = 32, kKeyVectors = 1;
  KVW_INLINE I32x16 load_vector(const uint8_t* p) { return load_int8_pairs(p); }
};
struct KvInt4 : PairMath {
  using Wide = KvPairs;
  static constexpr int kBytes = 16, kKeyVectors = 2;
  KVW_INLINE I32x16 load_vector(const uint8_t* p) { return load_int4_pairs(p); }
};

template <class Kv>
constexpr bool kIntegers = Kv::kTerms == 2;

template <class Kv, class Vec>
KVW_INLINE void load_keys(const uint8_t* p, Vec (&keys)[1]) {
  keys[0] = Kv::load_vector(p);
}
template <class Kv>
KVW_INLINE void load_keys(const uint8_t* p, I32x16 (&keys)[2]) {
  load_int4_pairs(p, keys[0], keys[1]);
}

KVW_INLINE constexpr int padded_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }

// Units of a row of q.
template <class Kv>
KVW_INLINE constexpr int key_units(int head_dim) {
  return kIntegers<Kv> ? padded_dim(head_dim) / 2 : head_dim;
}
// Bytes of V from one unit to the next: one token's, or two tokens'.
template <class Kv>
KVW_INLINE constexpr int value_stride(int head_dim) {
  return (kIntegers<Kv> ? padded_dim(head_dim) : head_dim) * Kv::kBytes / 16;
}

KVW_INLINE uint8_t* key_block(const AttentionArgs& a, int block, int kv_head) {
  return a.kv + static_cast<size_t>(block) * a.block_bytes + kv_head * kv_head_bytes(a.kv_type, a.head_dim);
}
KVW_INLINE uint8_t* value_block(const AttentionArgs& a, uint8_t* k) { return k + kv_half_bytes(a.kv_type, a.head_dim); }
// [2][16 tokens]: of K, then of V.
KVW_INLINE F16* block_scales(const AttentionArgs& a, uint8_t* k) {
  return reinterpret_cast<F16*>(k + 2 * kv_half_bytes(a.kv_type, a.head_dim));
}

}  // namespace kvw::KVW_ISA
