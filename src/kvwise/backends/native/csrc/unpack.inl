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

// The f16 at bytes j and j + 1 of every lane.
KVW_INLINE void f16_lanes(Bytes block, int j, float* out) {
  uint16_t bits[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    bits[lane] = static_cast<uint16_t>(block[j][lane] | block[j + 1][lane] << 8);
  }
  store(out, load_f16(bits));
}

template <WeightType>
struct Unpack;

// d · (w + 128 - 128), read from the paired layout: `block` is one pair, `half` which of its two blocks.
KVW_INLINE void unpack_q8_0(const uint8_t* pair, int half, Floats out) {
  const F32x16 d = load_f16(reinterpret_cast<const uint16_t*>(pair) + kLanes * half);
  const uint8_t* bytes = pair + 64 + 512 * half;
  for (int k = 0; k < 32; ++k) {
    float w[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) w[lane] = static_cast<float>(bytes[64 * (k / 4) + 4 * lane + k % 4] - 128);
    store(out[k], mul(load(w), d));
  }
}

KVW_INLINE void nibbles_to_floats(const uint8_t* bytes, int k, float* out) {
  const uint8_t* quad = bytes + 64 * (k % 16 / 4) + k % 4;
  const int shift = k < 16 ? 0 : 4;
  for (int lane = 0; lane < kLanes; ++lane) out[lane] = static_cast<float>(quad[4 * lane] >> shift & 15);
}

KVW_INLINE void unpack_q4_0(const uint8_t* pair, int half, Floats out) {
  const F32x16 d = load_f16(reinterpret_cast<const uint16_t*>(pair) + kLanes * half);
  for (int k = 0; k < 32; ++k) {
    float w[kLanes];
    nibbles_to_floats(pair + 64 + 256 * half, k, w);
    store(out[k], mul(sub(load(w), set1(8.0f)), d));
  }
}

KVW_INLINE void unpack_q4_1(const uint8_t* block, Floats out) {
  const F32x16 d = load_f16(reinterpret_cast<const uint16_t*>(block));
  const F32x16 m = load_f16(reinterpret_cast<const uint16_t*>(block) + kLanes);
  for (int k = 0; k < 32; ++k) {
    float w[kLanes];
    nibbles_to_floats(block + 64, k, w);
    store(out[k], fma(load(w), d, m));
  }
}

// f16 d | uint32 fifth bits | 16 bytes of nibbles: d · (w - 16)
template <>
struct Unpack<WeightType::q5_0> {
  static constexpr int kElements = 32, kBytes = 22;
  static void run(Bytes block, Floats out) {
    float d[kLanes];
    f16_lanes(block, 0, d);
    for (int k = 0; k < 32; ++k) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const int low = block[6 + k % 16][lane] >> (k / 16 * 4) & 15, high = block[2 + k / 8][lane] >> (k % 8) & 1;
        out[k][lane] = d[lane] * static_cast<float>((low | high << 4) - 16);
      }
    }
  }
};

// f16 d | f16 m | uint32 fifth bits | 16 bytes of nibbles: d · w + m
template <>
struct Unpack<WeightType::q5_1> {
  static constexpr int kElements = 32, kBytes = 24;
  static void run(Bytes block, Floats out) {
    float d[kLanes], m[kLanes];
    f16_lanes(block, 0, d);
    f16_lanes(block, 2, m);
    for (int k = 0; k < 32; ++k) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const int low = block[8 + k % 16][lane] >> (k / 16 * 4) & 15, high = block[4 + k / 8][lane] >> (k % 8) & 1;
        out[k][lane] = __builtin_fmaf(d[lane], static_cast<float>(low | high << 4), m[lane]);
      }
    }
  }
};

// 16 bytes: 4-bit scale, 4-bit minimum of each 16 elements | 64 bytes of 2-bit codes | f16 d | f16 dmin
template <>
struct Unpack<WeightType::q2_k> {
  static constexpr int kElements = 256, kBytes = 84;
  static void run(Bytes block, Floats out) {
    float d[kLanes], dmin[kLanes], scale[kLanes], minimum[kLanes];
    f16_lanes(block, 80, d);
    f16_lanes(block, 82, dmin);
    for (int group = 0; group < 16; ++group) {
      for (int lane = 0; lane < kLanes; ++lane) {
        scale[lane] = d[lane] * static_cast<float>(block[group][lane] & 15);
        minimum[lane] = dmin[lane] * static_cast<float>(block[group][lane] >> 4);
      }
      // 128 elements share 32 bytes: bits 2j, 2j + 1 of byte l are element 32 · j + l of them.
      const int half = group / 8, shift = group % 8 / 2 * 2, first = group % 2 * 16;
      for (int i = 0; i < 16; ++i) {
        Bytes codes = block + 16 + 32 * half + first + i;
        for (int lane = 0; lane < kLanes; ++lane) {
          const float q = static_cast<float>(codes[0][lane] >> shift & 3);
          out[16 * group + i][lane] = __builtin_fmaf(scale[lane], q, -minimum[lane]);
        }
      }
    }
  }
};

// 32 bytes of third bits | 64 bytes of 2-bit codes | 12 bytes of sixteen 6-bit scales | f16 d
template <>
struct Unpack<WeightType::q3_k> {
  static constexpr int kElements = 256, kBytes = 110;
  static void run(Bytes block, Floats out) {
    float d[kLanes], scale[kLanes];
    f16_lanes(block, 108, d);
    for (int group = 0; group < 16; ++group) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const int low = block[96 + group % 8][lane] >> (group / 8 * 4) & 15;
        const int high = block[104 + group % 4][lane] >> (group / 4 * 2) & 3;
        scale[lane] = d[lane] * static_cast<float>((low | high << 4) - 32);
      }
      const int half = group / 8, pair = group % 8 / 2, first = group % 2 * 16;
      for (int i = 0; i < 16; ++i) {
        Bytes codes = block + 32 + 32 * half + first + i, third = block + first + i;
        for (int lane = 0; lane < kLanes; ++lane) {
          const int low = codes[0][lane] >> (2 * pair) & 3, high = third[0][lane] >> (4 * half + pair) & 1;
          out[16 * group + i][lane] = scale[lane] * static_cast<float>((low | high << 2) - 4);
        }
      }
    }
  }
};

// Scale and minimum of 32 elements, 6 bits each, as q4_k and q5_k pack eight of both in 12 bytes.
KVW_INLINE void six_bit_scales(Bytes packed, int group, const float* d, const float* dmin, float* scale,
                               float* minimum) {
  for (int lane = 0; lane < kLanes; ++lane) {
    int s, m;
    if (group < 4) {
      s = packed[group][lane] & 63;
      m = packed[group + 4][lane] & 63;
    } else {
      s = (packed[group + 4][lane] & 15) | packed[group - 4][lane] >> 6 << 4;
      m = packed[group + 4][lane] >> 4 | packed[group][lane] >> 6 << 4;
    }
    scale[lane] = d[lane] * static_cast<float>(s);
    minimum[lane] = dmin[lane] * static_cast<float>(m);
  }
}

// f16 d | f16 dmin | 12 bytes of scales | 128 bytes of nibbles, low ones first in every 64 elements
template <>
struct Unpack<WeightType::q4_k> {
  static constexpr int kElements = 256, kBytes = 144;
  static void run(Bytes block, Floats out) {
    float d[kLanes], dmin[kLanes], scale[kLanes], minimum[kLanes];
    f16_lanes(block, 0, d);
    f16_lanes(block, 2, dmin);
    for (int group = 0; group < 8; ++group) {
      six_bit_scales(block + 4, group, d, dmin, scale, minimum);
      const int shift = group % 2 * 4;
      for (int i = 0; i < 32; ++i) {
        Bytes codes = block + 16 + 32 * (group / 2) + i;
        for (int lane = 0; lane < kLanes; ++lane) {
          const float q = static_cast<float>(codes[0][lane] >> shift & 15);
          out[32 * group + i][lane] = __builtin_fmaf(scale[lane], q, -minimum[lane]);
        }
      }
    }
  }
};

// f16 d | f16 dmin | 12 bytes of scales | 32 bytes of fifth bits | 128 bytes of nibbles
template <>
struct Unpack<WeightType::q5_k> {
  static constexpr int kElements = 256, kBytes = 176;
  static void run(Bytes block, Floats out) {
    float d[kLanes], dmin[kLanes], scale[kLanes], minimum[kLanes];
    f16_lanes(block, 0, d);
    f16_lanes(block, 2, dmin);
    for (int group = 0; group < 8; ++group) {
      six_bit_scales(block + 4, group, d, dmin, scale, minimum);
      const int shift = group % 2 * 4;
      for (int i = 0; i < 32; ++i) {
        Bytes codes = block + 48 + 32 * (group / 2) + i, fifth = block + 16 + i;
        for (int lane = 0; lane < kLanes; ++lane) {
          const int low = codes[0][lane] >> shift & 15, high = fifth[0][lane] >> group & 1;
          out[32 * group + i][lane] = __builtin_fmaf(scale[lane], static_cast<float>(low | high << 4), -minimum[lane]);
        }
      }
    }
  }
};

// 128 bytes of low nibbles | 64 bytes of upper 2 bits | 16 int8 scales | f16 d
template <>
struct Unpack<WeightType::q6_k> {
  static constexpr int kElements = 256, kBytes = 210;
  static void run(Bytes block, Floats out) {
    float d[kLanes], scale[kLanes];
    f16_lanes(block, 208, d);
    for (int group = 0; group < 16; ++group) {
      for (int lane = 0; lane < kLanes; ++lane) {
        scale[lane] = d[lane] * static_cast<float>(static_cast<int8_t>(block[192 + group][lane]));
      }
      // 128 elements: quarter j of 32 takes nibble j / 2 of 32 bytes and bits 2j, 2j + 1 of 32 others.
      const int half = group / 8, quarter = group % 8 / 2, first = group % 2 * 16;
      for (int i = 0; i < 16; ++i) {
        Bytes low_bits = block + 64 * half + quarter % 2 * 32 + first + i;
        Bytes high_bits = block + 128 + 32 * half + first + i;
        for (int lane = 0; lane < kLanes; ++lane) {
          const int low = low_bits[0][lane] >> (quarter / 2 * 4) & 15, high = high_bits[0][lane] >> (2 * quarter) & 3;
          out[16 * group + i][lane] = scale[lane] * static_cast<float>((low | high << 4) - 32);
        }
      }
    }
  }
};

}  // namespace kvw::KVW_ISA
