// Turns one stored block of 16 interleaved rows into float32, for every block type: what a matmul on float32 activations
// and the embedding lookup read. `out` becomes element [k][lane]. Each value is rounded once.
#pragma once

#include "k_quants.h"

namespace kvw::KVW_ISA {

using Floats = float (*)[kLanes];  // element [k][lane]

// Weights are scale · (code - bias), or scale · code + minimum; each half of 32 inputs has its own.
struct HalfScales {
  F32x16 scale[2];
  F32x16 minimum[2];
};

template <bool has_minimum, int i>
KVW_INLINE void unpack_byte(I32x16 words, int32_t bias, F32x16 scale, F32x16 minimum, float* out) {
  const I32x16 code = bit_and(shr<8 * i>(words), set1_i32(255));
  store(out, has_minimum ? fma(to_f32(code), scale, minimum) : mul(to_f32(sub(code, set1_i32(bias))), scale));
}

// 32 inputs from codes [quad][lane][4].
template <bool has_minimum>
static void unpack_codes(const uint8_t* codes, int32_t bias, const HalfScales& halves, Floats out) {
  for (int quad = 0; quad < 8; ++quad, out += 4) {
    const I32x16 words = as_words(load_bytes(codes + 64 * quad));
    const F32x16 scale = halves.scale[quad / 4], minimum = has_minimum ? halves.minimum[quad / 4] : scale;
    unpack_byte<has_minimum, 0>(words, bias, scale, minimum, out[0]);
    unpack_byte<has_minimum, 1>(words, bias, scale, minimum, out[1]);
    unpack_byte<has_minimum, 2>(words, bias, scale, minimum, out[2]);
    unpack_byte<has_minimum, 3>(words, bias, scale, minimum, out[3]);
  }
}

KVW_INLINE void spread_nibbles(const uint8_t* lines, uint8_t* codes) {
  for (int line = 0; line < 4; ++line) {
    const Bytes64 both = load_bytes(lines + 64 * line);
    store_bytes(codes + 64 * line, low_nibbles(both));
    store_bytes(codes + 64 * (4 + line), high_nibbles(both));
  }
}

// Block b of a tile, wherever the layout puts it.
template <WeightType type>
struct TileBlock;

template <>
struct TileBlock<WeightType::q8_0> {
  static constexpr int kElements = 32;
  static void unpack(const uint8_t* tile, int64_t b, Floats out) {
    constexpr UnitShape kUnit = unit_shape(WeightType::q8_0);
    const F32x16 d = f16_at(tile + head_offset(kUnit, b));
    unpack_codes<false>(tile + body_offset(kUnit, b), 128, {{d, d}, {}}, out);
  }
};
template <>
struct TileBlock<WeightType::q4_1> {
  static constexpr int kElements = 32;
  static void unpack(const uint8_t* tile, int64_t b, Floats out) {
    constexpr UnitShape kUnit = unit_shape(WeightType::q4_1);
    const uint8_t* head = tile + head_offset(kUnit, b);
    const F32x16 d = f16_at(head), minimum = f16_at(head + 32);
    alignas(64) uint8_t codes[8 * 64];
    spread_nibbles(tile + body_offset(kUnit, b), codes);
    unpack_codes<true>(codes, 0, {{d, d}, {minimum, minimum}}, out);
  }
};

template <>
struct TileBlock<WeightType::i8> {
  static constexpr int kElements = 32;
  static void unpack(const uint8_t* tile, int64_t b, Floats out) {
    const F32x16 d = load(reinterpret_cast<const float*>(tile));
    unpack_codes<false>(tile + 64 + 512 * b, 128, {{d, d}, {}}, out);
  }
};
template <WeightType type>
struct GroupOfNibbles {
  static constexpr int kElements = 32;
  static void unpack(const uint8_t* tile, int64_t b, Floats out) {
    constexpr UnitShape kUnit = unit_shape(type);
    constexpr int64_t kBlocks = block_shape(type).elements / 32;
    const F32x16 d = f16_at(tile + head_offset(kUnit, b / kBlocks));
    alignas(64) uint8_t codes[8 * 64];
    spread_nibbles(tile + body_offset(kUnit, b / kBlocks) + b % kBlocks * 256, codes);
    unpack_codes<false>(codes, 8, {{d, d}, {}}, out);
  }
};
template <>
struct TileBlock<WeightType::q4_0> : GroupOfNibbles<WeightType::q4_0> {};
template <>
struct TileBlock<WeightType::i4_64> : GroupOfNibbles<WeightType::i4_64> {};
template <>
struct TileBlock<WeightType::i4_128> : GroupOfNibbles<WeightType::i4_128> {};

// Block b of a group. d · scale and dmin · minimum are exact.
template <class Format>
KVW_INLINE void unpack_group_block(const StoredGroup<Format>& group, int b, Floats out) {
  alignas(64) uint8_t codes[8 * 64];
  repeat<8>([&](auto index) KVW_INLINE_LAMBDA {
    constexpr int quad = decltype(index)::value;
    store_bytes(codes + 64 * quad, group.template code<quad>(b));
  });
  const F32x16 d = group.d();
  const auto scales = group.scales(b);
  HalfScales halves{{mul(d, of_half<0>(scales)), mul(d, of_half<1>(scales))}, {}};
  if constexpr (Format::kHasMinimum) {
    const F32x16 dmin = group.dmin();
    const auto minima = group.minima(b);
    halves.minimum[0] = mul(dmin, of_half<0>(minima));
    halves.minimum[1] = mul(dmin, of_half<1>(minima));
  }
  unpack_codes<Format::kHasMinimum>(codes, Format::kBias, halves, out);
}

template <class Format>
struct FormatBlock {
  using Group = StoredGroup<Format>;
  static constexpr int kElements = Group::kUnitBlocks * kQ8Block;
  static void unpack(const uint8_t* tile, int64_t block, Floats out) {
    if constexpr (Group::kWhole) {
      for (int b = 0; b < kGroupBlocks; ++b) unpack_group_block(Group{tile, block}, b, out + kQ8Block * b);
    } else {
      unpack_group_block(Group{tile, block / kGroupBlocks}, static_cast<int>(block % kGroupBlocks), out);
    }
  }
};
template <>
struct TileBlock<WeightType::q5_0> : FormatBlock<Q5_0> {};
template <>
struct TileBlock<WeightType::q5_1> : FormatBlock<Q5_1> {};
template <>
struct TileBlock<WeightType::q2_k> : FormatBlock<Q2_K> {};
template <>
struct TileBlock<WeightType::q3_k> : FormatBlock<Q3_K> {};
template <>
struct TileBlock<WeightType::q4_k> : FormatBlock<Q4_K> {};
template <>
struct TileBlock<WeightType::q5_k> : FormatBlock<Q5_K> {};
template <>
struct TileBlock<WeightType::q6_k> : FormatBlock<Q6_K> {};

}  // namespace kvw::KVW_ISA
