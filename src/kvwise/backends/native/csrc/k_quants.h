// How codes and scales of K-quants, q5_0 and q5_1 are read from the planes that layout.h draws: what the integer
// kernels and the way to float32 share.
//
// A format is a type's constants and, for 16 lanes at once,
//   code<quad>(lines)   the codes of inputs 4 · quad .. 4 · quad + 3 of a block of 32
//   scales(subs, b)     of block b of a unit: of its 32 inputs (OneScale), or of its halves (TwoScales, PairedScales)
//   minima(subs, b)     of its 32 inputs as float32, or of its halves in pairs of int16
//   d(head) dmin(head)
// so that a weight is d · scale · (code - kBias), or d · scale · code + dmin · minimum.
//
// q5_0 and q5_1 have one block of 32 per unit: their scale and minimum stand in the head, d and dmin are 1.
#pragma once

#include "dot.h"
#include "layout.h"

namespace kvw::KVW_ISA {

// Calls f(Index<0>{}) .. f(Index<N - 1>{}): what shifts and places are made of must be known to the compiler.
template <int i>
struct Index {
  static constexpr int value = i;
};
template <int N, class F>
KVW_INLINE void repeat(F&& f) {
  if constexpr (N > 0) {
    repeat<N - 1>(f);
    f(Index<N - 1>{});
  }
}

// ---- scales of 32 inputs, and the sums of codes · x times them, exact: below 2^24, so that float32 holds them ----

struct OneScale {
  static constexpr int kSums = 1;  // over 32 inputs
  F32x16 whole;
};
struct TwoScales {
  static constexpr int kSums = 2;  // over 16 inputs each
  F32x16 half[2];
};
// Two int16 in each lane. For codes so small that a sum over 16 inputs is an int16, too.
struct PairedScales {
  static constexpr int kSums = 2;
  I32x16 pair;
};

KVW_INLINE F32x16 scaled(const OneScale& scale, I32x16 sum) { return mul(to_f32(sum), scale.whole); }
KVW_INLINE F32x16 scaled(const TwoScales& scale, I32x16 first, I32x16 second) {
  return fma(to_f32(second), scale.half[1], mul(to_f32(first), scale.half[0]));
}
KVW_INLINE F32x16 scaled(const PairedScales& scale, I32x16 first, I32x16 second) {
  return to_f32(dot_int16_pairs(pair_of(first, second), scale.pair));
}

// Scales and minima of one half as float32.
template <int half>
KVW_INLINE F32x16 of_half(F32x16 whole) {
  return whole;
}
template <int half>
KVW_INLINE F32x16 of_half(I32x16 pair) {
  return to_f32(half ? second_half(pair) : first_half(pair));
}
template <int half>
KVW_INLINE F32x16 of_half(const OneScale& scale) {
  return scale.whole;
}
template <int half>
KVW_INLINE F32x16 of_half(const TwoScales& scale) {
  return scale.half[half];
}
template <int half>
KVW_INLINE F32x16 of_half(const PairedScales& scale) {
  return of_half<half>(scale.pair);
}

// ---- formats ----

// The planes of 32 inputs, their field moved to bit `to`.
template <int quad>
KVW_INLINE Bytes64 nibbles(const uint8_t* lines) {
  return field<4, quad / 4 * 4, 0>(load_bytes(lines + 64 * (quad % 4)));
}
template <int quad, int to>
KVW_INLINE Bytes64 pairs(const uint8_t* lines) {
  return field<2, quad % 4 * 2, to>(load_bytes(lines + 64 * (quad / 4)));
}
template <int quad, int to>
KVW_INLINE Bytes64 bits(const uint8_t* line) {
  return field<1, quad, to>(load_bytes(line));
}

KVW_INLINE F32x16 small_integers(const uint8_t* p) { return to_f32(load_i8(reinterpret_cast<const int8_t*>(p))); }
KVW_INLINE F32x16 f16_at(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }

struct Codes4 {
  template <int quad>
  KVW_INLINE Bytes64 code(const uint8_t* lines) {
    return nibbles<quad>(lines);
  }
};
struct Codes5 {
  template <int quad>
  KVW_INLINE Bytes64 code(const uint8_t* lines) {
    return joined(nibbles<quad>(lines + 64), bits<quad, 4>(lines));
  }
};

struct SixBitScales {
  static constexpr int kBias = 0;
  static constexpr bool kHasMinimum = true;
  KVW_INLINE OneScale scales(const uint8_t* subs, int b) { return {small_integers(subs + kLanes * b)}; }
  KVW_INLINE F32x16 minima(const uint8_t* subs, int b) { return small_integers(subs + kLanes * (8 + b)); }
};
struct Q4_K : Codes4, SixBitScales {
  static constexpr WeightType kType = WeightType::q4_k;
};
struct Q5_K : Codes5, SixBitScales {
  static constexpr WeightType kType = WeightType::q5_k;
};

struct Q2_K {
  static constexpr WeightType kType = WeightType::q2_k;
  static constexpr int kBias = 0;
  static constexpr bool kHasMinimum = true;
  template <int quad>
  KVW_INLINE Bytes64 code(const uint8_t* lines) {
    return pairs<quad, 0>(lines);
  }
  KVW_INLINE PairedScales scales(const uint8_t* subs, int b) {
    return {bit_and(load_u8_pairs(subs + 2 * kLanes * b), set1_i32(0x000f000f))};
  }
  // What of the second number shifts into the first is above its 4 bits.
  KVW_INLINE I32x16 minima(const uint8_t* subs, int b) {
    return bit_and(shr<4>(load_u8_pairs(subs + 2 * kLanes * b)), set1_i32(0x000f000f));
  }
};

struct Q3_K {
  static constexpr WeightType kType = WeightType::q3_k;
  static constexpr int kBias = 4;
  static constexpr bool kHasMinimum = false;
  template <int quad>
  KVW_INLINE Bytes64 code(const uint8_t* lines) {
    return joined(pairs<quad, 0>(lines + 64), bits<quad, 2>(lines));
  }
  KVW_INLINE PairedScales scales(const uint8_t* subs, int b) { return {load_i8_pairs(subs + 2 * kLanes * b)}; }
};

struct Q6_K {
  static constexpr WeightType kType = WeightType::q6_k;
  static constexpr int kBias = 32;
  static constexpr bool kHasMinimum = false;
  template <int quad>
  KVW_INLINE Bytes64 code(const uint8_t* lines) {
    return joined(nibbles<quad>(lines + 128), pairs<quad, 4>(lines));
  }
  KVW_INLINE TwoScales scales(const uint8_t* subs, int b) {
    return {{small_integers(subs + 2 * kLanes * b), small_integers(subs + 2 * kLanes * b + kLanes)}};
  }
};

struct Q5_0 : Codes5 {
  static constexpr WeightType kType = WeightType::q5_0;
  static constexpr int kBias = 16;
  static constexpr bool kHasMinimum = false;
};
struct Q5_1 : Codes5 {
  static constexpr WeightType kType = WeightType::q5_1;
  static constexpr int kBias = 0;
  static constexpr bool kHasMinimum = true;
};

// ---- groups ----

constexpr int kGroupBlocks = 8;  // of 32 inputs: a unit of a K-quant

// Up to eight blocks of 32 inputs of one tile, from block 8 · g on, wherever their units lie.
template <class F>
struct StoredGroup {
  using Format = F;
  static constexpr bool kHasMinimum = Format::kHasMinimum, kHasBias = Format::kBias != 0;
  static constexpr UnitShape kUnit = unit_shape(Format::kType);
  static constexpr int kUnitBlocks = static_cast<int>(block_shape(Format::kType).elements / kQ8Block);
  static constexpr bool kWhole = kUnitBlocks == kGroupBlocks;  // one unit, not eight

  const uint8_t* tile;
  int64_t g;

  KVW_MEMBER int64_t unit(int b) const { return kWhole ? g : kGroupBlocks * g + b; }
  KVW_MEMBER const uint8_t* head(int b) const { return tile + head_offset(kUnit, unit(b)); }
  KVW_MEMBER const uint8_t* body(int b) const { return tile + body_offset(kUnit, unit(b)); }
  KVW_MEMBER const uint8_t* lines(int b) const {
    return body(b) + kUnit.sub_scales + (kWhole ? b * (kUnit.codes / kGroupBlocks) : 0);
  }
  template <int quad>
  KVW_MEMBER Bytes64 code(int b) const {
    return Format::template code<quad>(lines(b));
  }
  KVW_MEMBER auto scales(int b) const {
    if constexpr (kWhole) {
      return Format::scales(body(0), b);
    } else {
      return OneScale{f16_at(head(b))};
    }
  }
  KVW_MEMBER auto minima(int b) const {
    if constexpr (kWhole) {
      return Format::minima(body(0), b);
    } else {
      return f16_at(head(b) + 32);
    }
  }
  KVW_MEMBER F32x16 d() const { return kWhole ? f16_at(head(0)) : set1(1.0f); }
  KVW_MEMBER F32x16 dmin() const { return kWhole ? neg(f16_at(head(0) + 32)) : set1(1.0f); }

  // Asks for the lines that are read last or here and there, so that memory sees one stream of rising addresses.
  KVW_MEMBER void announce() const {
    if constexpr (kWhole) {
      __builtin_prefetch(head(0));
#pragma GCC unroll 4
      for (int64_t i = 0; i < kUnit.sub_scales; i += 64) __builtin_prefetch(body(0) + i);
    }
  }
};

}  // namespace kvw::KVW_ISA
