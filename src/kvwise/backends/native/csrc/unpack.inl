// Turns one stored block of 16 interleaved rows into float32: the generic path of every type without a kernel of
// its own. `block` holds byte [j][lane]; `out` becomes element [k][lane]. Each value is rounded once.
//
// Block formats: github.com/ggml-org/ggml, src/ggml-common.h and ggml-quants.c (dequantize_row_*).
#pragma once

#include "kernel_table.h"
#include "vec.h"

namespace kvw::KVW_ISA {

using Bytes = const uint8_t (*)[kLanes];  // byte [j][lane]
using Floats = float (*)[kLanes];         // element [k][lane]

// Calls f(Index<0>{}) .. f(Index<N - 1>{}): shifts must be known to the compiler.
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

// The f16 at bytes j and j + 1 of every lane.
KVW_INLINE F32x16 f16_lanes(Bytes block, int j) {
  uint16_t bits[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    bits[lane] = static_cast<uint16_t>(block[j][lane] | block[j + 1][lane] << 8);
  }
  return load_f16(bits);
}

// `bits` bits from bit `shift` of byte j of every lane. The sign that load_i8 spreads upwards is masked off.
template <int bits, int shift>
KVW_INLINE I32x16 field(Bytes block, int j) {
  static_assert(bits + shift <= 8);
  return bit_and(shr<shift>(load_i8(reinterpret_cast<const int8_t*>(block[j]))), set1_i32((1 << bits) - 1));
}

// low | high << n, of fields that do not overlap.
template <int n>
KVW_INLINE I32x16 joined(I32x16 low, I32x16 high) {
  return add(low, shl<n>(high));
}

KVW_INLINE F32x16 less_by(I32x16 x, int32_t n) { return to_f32(sub(x, set1_i32(n))); }

template <WeightType>
struct Unpack;

// Byte i of each lane's word of four inputs, from `shift` on.
template <int bits, int shift>
KVW_INLINE I32x16 of_word(I32x16 word) {
  return bit_and(shr<shift>(word), set1_i32((1 << bits) - 1));
}

// Words j of 4 inputs for every lane: nibbles of inputs 4j .. 4j + 3 below those of inputs 16 + 4j ..
template <class Store>
KVW_INLINE void each_nibble(const uint8_t* bytes, Store store_input) {
  for (int j = 0; j < 4; ++j) {
    const I32x16 word = load_i32(reinterpret_cast<const int32_t*>(bytes) + kLanes * j);
    repeat<4>([&](auto i) {
      constexpr int kShift = 8 * decltype(i)::value;
      store_input(4 * j + decltype(i)::value, of_word<4, kShift>(word));
      store_input(16 + 4 * j + decltype(i)::value, of_word<4, kShift + 4>(word));
    });
  }
}

// d · (w - 128) of a block's bytes.
KVW_INLINE void unpack_bytes(const uint8_t* bytes, F32x16 d, Floats out) {
  const auto* words = reinterpret_cast<const int32_t*>(bytes);
  for (int j = 0; j < 8; ++j) {
    const I32x16 word = load_i32(words + kLanes * j);
    repeat<4>([&](auto i) {
      constexpr int kByte = decltype(i)::value;
      store(out[4 * j + kByte], mul(less_by(of_word<8, 8 * kByte>(word), 128), d));
    });
  }
}

// d · (w - 8) of a block's nibbles.
KVW_INLINE void unpack_nibbles(const uint8_t* bytes, F32x16 d, Floats out) {
  each_nibble(bytes, [&](int k, I32x16 w) { store(out[k], mul(less_by(w, 8), d)); });
}

KVW_INLINE void unpack_q4_1(const uint8_t* block, Floats out) {
  const F32x16 d = load_f16(reinterpret_cast<const uint16_t*>(block));
  const F32x16 m = load_f16(reinterpret_cast<const uint16_t*>(block) + kLanes);
  each_nibble(block + 64, [&](int k, I32x16 w) { store(out[k], fma(to_f32(w), d, m)); });
}

// f16 d | uint32 fifth bits | 16 bytes of nibbles: d · (w - 16)
template <>
struct Unpack<WeightType::q5_0> {
  static constexpr int kElements = 32, kBytes = 22;
  static void run(Bytes block, Floats out) {
    const F32x16 d = f16_lanes(block, 0);
    for (int half = 0; half < 2; ++half) {  // of the 16 bytes of nibbles
      repeat<8>([&](auto bit) {
        constexpr int kBit = decltype(bit)::value;
        const int i = 8 * half + kBit;
        const I32x16 low = joined<4>(field<4, 0>(block, 6 + i), field<1, kBit>(block, 2 + half));
        const I32x16 high = joined<4>(field<4, 4>(block, 6 + i), field<1, kBit>(block, 4 + half));
        store(out[i], mul(d, less_by(low, 16)));
        store(out[16 + i], mul(d, less_by(high, 16)));
      });
    }
  }
};

// f16 d | f16 m | uint32 fifth bits | 16 bytes of nibbles: d · w + m
template <>
struct Unpack<WeightType::q5_1> {
  static constexpr int kElements = 32, kBytes = 24;
  static void run(Bytes block, Floats out) {
    const F32x16 d = f16_lanes(block, 0), m = f16_lanes(block, 2);
    for (int half = 0; half < 2; ++half) {
      repeat<8>([&](auto bit) {
        constexpr int kBit = decltype(bit)::value;
        const int i = 8 * half + kBit;
        const I32x16 low = joined<4>(field<4, 0>(block, 8 + i), field<1, kBit>(block, 4 + half));
        const I32x16 high = joined<4>(field<4, 4>(block, 8 + i), field<1, kBit>(block, 6 + half));
        store(out[i], fma(d, to_f32(low), m));
        store(out[16 + i], fma(d, to_f32(high), m));
      });
    }
  }
};

// 16 bytes: 4-bit scale, 4-bit minimum of each 16 elements | 64 bytes of 2-bit codes | f16 d | f16 dmin
//
// 128 elements share 32 bytes: bits 2j, 2j + 1 of byte i are element 32 · j + i of them.
template <>
struct Unpack<WeightType::q2_k> {
  static constexpr int kElements = 256, kBytes = 84;
  static void run(Bytes block, Floats out) {
    const F32x16 d = f16_lanes(block, 80), dmin = f16_lanes(block, 82);
    F32x16 scale[16], minimum[16];
    for (int g = 0; g < 16; ++g) {
      scale[g] = mul(d, to_f32(field<4, 0>(block, g)));
      minimum[g] = neg(mul(dmin, to_f32(field<4, 4>(block, g))));
    }
    for (int i = 0; i < 64; ++i) {
      const int half = i / 32, first_group = 8 * half + i % 32 / 16, first = 128 * half + i % 32;
      repeat<4>([&](auto quarter) {
        constexpr int j = decltype(quarter)::value;
        const F32x16 code = to_f32(field<2, 2 * j>(block, 16 + i));
        store(out[first + 32 * j], fma(scale[first_group + 2 * j], code, minimum[first_group + 2 * j]));
      });
    }
  }
};

// 32 bytes of third bits | 64 bytes of 2-bit codes as in q2_k | 12 bytes of sixteen 6-bit scales | f16 d
template <>
struct Unpack<WeightType::q3_k> {
  static constexpr int kElements = 256, kBytes = 110;
  static void run(Bytes block, Floats out) {
    const F32x16 d = f16_lanes(block, 108);
    F32x16 scale[16];
    repeat<4>([&](auto index) {
      constexpr int j = decltype(index)::value;  // groups 4j .. 4j + 3: upper bits 2j, 2j + 1 of bytes 104 ..
      for (int i = 0; i < 4; ++i) {
        const I32x16 low = field<4, j / 2 * 4>(block, 96 + j % 2 * 4 + i), high = field<2, 2 * j>(block, 104 + i);
        scale[4 * j + i] = mul(d, less_by(joined<4>(low, high), 32));
      }
    });
    repeat<2>([&](auto which) {
      constexpr int half = decltype(which)::value;
      for (int i = 0; i < 32; ++i) {
        repeat<4>([&](auto quarter) {
          constexpr int j = decltype(quarter)::value;
          const I32x16 code = joined<2>(field<2, 2 * j>(block, 32 + 32 * half + i), field<1, 4 * half + j>(block, i));
          store(out[128 * half + 32 * j + i], mul(scale[8 * half + 2 * j + i / 16], less_by(code, 4)));
        });
      }
    });
  }
};

// Scales and minima of 8 groups of 32 elements, 6 bits each, as q4_k and q5_k pack them in 12 bytes: four of each
// whole in bytes 0..3 and 4..7, whose upper 2 bits complete the nibbles of bytes 8..11.
KVW_INLINE void six_bit_scales(Bytes packed, F32x16 d, F32x16 dmin, F32x16* scale, F32x16* minimum) {
  for (int g = 0; g < 4; ++g) {
    scale[g] = mul(d, to_f32(field<6, 0>(packed, g)));
    minimum[g] = neg(mul(dmin, to_f32(field<6, 0>(packed, g + 4))));
    scale[g + 4] = mul(d, to_f32(joined<4>(field<4, 0>(packed, g + 8), field<2, 6>(packed, g))));
    minimum[g + 4] = neg(mul(dmin, to_f32(joined<4>(field<4, 4>(packed, g + 8), field<2, 6>(packed, g + 4)))));
  }
}

// f16 d | f16 dmin | 12 bytes of scales | 128 bytes of nibbles, low ones first in every 64 elements
template <>
struct Unpack<WeightType::q4_k> {
  static constexpr int kElements = 256, kBytes = 144;
  static void run(Bytes block, Floats out) {
    F32x16 scale[8], minimum[8];
    six_bit_scales(block + 4, f16_lanes(block, 0), f16_lanes(block, 2), scale, minimum);
    for (int pair = 0; pair < 4; ++pair) {
      const int g = 2 * pair;
      for (int i = 0; i < 32; ++i) {
        const I32x16 low = field<4, 0>(block, 16 + 32 * pair + i), high = field<4, 4>(block, 16 + 32 * pair + i);
        store(out[32 * g + i], fma(scale[g], to_f32(low), minimum[g]));
        store(out[32 * g + 32 + i], fma(scale[g + 1], to_f32(high), minimum[g + 1]));
      }
    }
  }
};

// f16 d | f16 dmin | 12 bytes of scales | 32 bytes of fifth bits, one bit per group | 128 bytes of nibbles
template <>
struct Unpack<WeightType::q5_k> {
  static constexpr int kElements = 256, kBytes = 176;
  static void run(Bytes block, Floats out) {
    F32x16 scale[8], minimum[8];
    six_bit_scales(block + 4, f16_lanes(block, 0), f16_lanes(block, 2), scale, minimum);
    repeat<4>([&](auto pair) {
      constexpr int g = 2 * decltype(pair)::value;
      for (int i = 0; i < 32; ++i) {
        const int byte = 48 + 16 * g + i;
        const I32x16 low = joined<4>(field<4, 0>(block, byte), field<1, g>(block, 16 + i));
        const I32x16 high = joined<4>(field<4, 4>(block, byte), field<1, g + 1>(block, 16 + i));
        store(out[32 * g + i], fma(scale[g], to_f32(low), minimum[g]));
        store(out[32 * g + 32 + i], fma(scale[g + 1], to_f32(high), minimum[g + 1]));
      }
    });
  }
};

// 128 bytes of low nibbles | 64 bytes of upper 2 bits | 16 int8 scales | f16 d
//
// 128 elements in four quarters: quarter j takes nibble j / 2 of 32 bytes and bits 2j, 2j + 1 of 32 others.
template <>
struct Unpack<WeightType::q6_k> {
  static constexpr int kElements = 256, kBytes = 210;
  static void run(Bytes block, Floats out) {
    const F32x16 d = f16_lanes(block, 208);
    F32x16 scale[16];
    for (int g = 0; g < 16; ++g) {
      scale[g] = mul(d, to_f32(load_i8(reinterpret_cast<const int8_t*>(block[192 + g]))));
    }
    for (int i = 0; i < 64; ++i) {
      const int half = i / 32, l = i % 32;
      repeat<4>([&](auto quarter) {
        constexpr int j = decltype(quarter)::value;
        const I32x16 low = field<4, j / 2 * 4>(block, 64 * half + j % 2 * 32 + l);
        const I32x16 code = joined<4>(low, field<2, 2 * j>(block, 128 + i));
        store(out[128 * half + 32 * j + l], mul(scale[8 * half + 2 * j + l / 16], less_by(code, 32)));
      });
    }
  }
};

}  // namespace kvw::KVW_ISA
