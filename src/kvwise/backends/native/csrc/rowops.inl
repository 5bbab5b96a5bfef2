// The operations on rows of activations: norm, quantization, rotation, sums, activations. In-place calls are allowed:
// an element is read before it is written. Rows of any length: the last vector is masked.
//
// The order of every sum is a function of the row's length alone.

#include "kernel_table.h"
#include "vec_math.h"

namespace kvw::KVW_ISA {

// Calls body(offset, lanes) for each vector of n elements, the last with fewer than 16 lanes.
template <class Body>
KVW_INLINE void for_each_vector(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) body(i, 16);
  if (i < n) body(i, static_cast<int>(n - i));
}
KVW_INLINE F32x16 load_lanes(const float* p, int lanes) { return lanes == 16 ? load(p) : load_n(p, lanes); }
KVW_INLINE void store_lanes(float* p, F32x16 x, int lanes) {
  if (lanes == 16) {
    store(p, x);
  } else {
    store_n(p, x, lanes);
  }
}

// Σ x²: vector i of 16 goes to accumulator i mod 4, which are then added pairwise, then over lanes. Each float32
// partial sum takes n / 64 terms, so that the error is below that of 16 or fewer running sums.
static inline float sum_of_squares(const float* x, int64_t n) {
  F32x16 s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero();
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const F32x16 a = load(x + i), b = load(x + i + 16), c = load(x + i + 32), d = load(x + i + 48);
    s0 = fma(a, a, s0);
    s1 = fma(b, b, s1);
    s2 = fma(c, c, s2);
    s3 = fma(d, d, s3);
  }
  for_each_vector(n - i, [&](int64_t j, int lanes) {
    const F32x16 a = load_lanes(x + i + j, lanes);
    F32x16& s = j < 16 ? s0 : j < 32 ? s1 : j < 48 ? s2 : s3;
    s = fma(a, a, s);
  });
  return sum(add(add(s0, s1), add(s2, s3)));
}

// out = x / sqrt(mean(x²) + eps) · (weight + weight_offset), for each `group` of `width` elements; weight [group].
static void rms_norm(const float* x, const float* weight, float* out, int64_t width, int64_t group, float eps,
                     float weight_offset) {
  const F32x16 offset = set1(weight_offset);
  for (int64_t start = 0; start < width; start += group) {
    const float mean = sum_of_squares(x + start, group) / static_cast<float>(group);
    const F32x16 inverse = div(set1(1.0f), sqrt(set1(mean + eps)));
    for_each_vector(group, [&](int64_t i, int lanes) {
      const F32x16 w = add(load_lanes(weight + i, lanes), offset);
      store_lanes(out + start + i, mul(mul(load_lanes(x + start + i, lanes), inverse), w), lanes);
    });
  }
}

// A vector of x from element i on, zeros past `width`.
KVW_INLINE F32x16 load_padded(const float* x, int64_t i, int64_t width) {
  return i + 16 <= width ? load(x + i) : i < width ? load_n(x + i, static_cast<int>(width - i)) : zero();
}

// Where the blocks of one q8 row lie (kernel_table.h).
struct Q8Row {
  int8_t* q;
  uint8_t *scales, *sums;
  KVW_MEMBER Q8Row from(int64_t b) const { return {q + kQ8Block * b, scales + 4 * b, sums + 4 * b}; }
};
KVW_INLINE Q8Row q8_row_at(uint8_t* row, int64_t blocks) {
  return {reinterpret_cast<int8_t*>(row), row + kQ8Block * blocks, row + (kQ8Block + 4) * blocks};
}

// Blocks [b, end) share a scale = max|x| / 127; inverse = 1 / scale, q = nearest even (x · inverse), all in float32.
// If max|x| is below 2^-120 they are zeros with scale 0, because the inverse could overflow; if it is an infinity or a
// NaN they are zeros with that scale, which makes every product with them a NaN. `left`, unless null: x - scale · q.
KVW_INLINE void quantize_group(const float* x, int64_t width, int64_t b, int64_t end, const Q8Row& row, bool long_group,
                               float* left) {
  I32x16 magnitudes = set1_i32(0);  // they compare as integers, where a NaN is above infinity
  for (int64_t i = kQ8Block * b; i < kQ8Block * end; i += 16) {
    magnitudes = max(magnitudes, as_i32(abs(load_padded(x, i, width))));
  }
  const int32_t largest = max_of(magnitudes);
  float amax;
  std::memcpy(&amax, &largest, sizeof amax);
  const float scale = largest < 0x03800000 ? 0.0f : amax / 127.0f;  // 2^-120
  const bool finite = largest >= 0x03800000 && largest < 0x7F800000;
  const F32x16 inverse = set1(finite ? 1.0f / scale : 0.0f), minus_scale = set1(-scale);
  int32_t block_sums[kMaxQ8Group / kQ8Block] = {};
  for (int64_t block = b; block < end; ++block) {
    int16_t half_sums[2];  // |sum| <= 16 · 127
    for (int half = 0; half < 2; ++half) {
      const int64_t i = kQ8Block * block + 16 * half;
      const F32x16 value = load_padded(x, i, width);
      const I32x16 q = finite ? to_i32(mul(value, inverse)) : set1_i32(0);
      store_i8(row.q + i, q);
      half_sums[half] = static_cast<int16_t>(sum(q));
      if (left) store(left + i - kQ8Block * b, fma(to_f32(q), minus_scale, value));
    }
    std::memcpy(row.scales + 4 * block, &scale, sizeof scale);
    std::memcpy(row.sums + 4 * block, half_sums, sizeof half_sums);
    block_sums[block - b] = half_sums[0] + half_sums[1];
  }
  if (long_group) {
    const int64_t n = end - b;
    const int32_t head = block_sums[0] + block_sums[1], tail = block_sums[2] + block_sums[3];
    const int32_t sums[] = {head + tail, head, tail, 0};
    std::memcpy(row.sums + 4 * b, sums, 4 * n);
  }
}

// One row to q8, or to q8x2. The last block of a width that is not a multiple of 32 is filled up with zeros.
static void quantize(const float* x, uint8_t* q8_row, int64_t width, int group, bool twice) {
  const int64_t blocks = (width + kQ8Block - 1) / kQ8Block, group_blocks = group / kQ8Block;
  const Q8Row first = q8_row_at(q8_row, blocks), second = q8_row_at(q8_row + q8_row_bytes(width), blocks);
  alignas(64) float left[kMaxQ8Group];
  for (int64_t b = 0; b < blocks; b += group_blocks) {
    const int64_t end = b + group_blocks < blocks ? b + group_blocks : blocks;
    quantize_group(x, width, b, end, first, group_blocks > 1, twice ? left : nullptr);
    if (twice) quantize_group(left, kQ8Block * (end - b), 0, end - b, second.from(b), group_blocks > 1, nullptr);
  }
}

// One row to bf16, nearest even; an odd width is filled up with a zero.
static void narrow(const float* x, uint8_t* row, int64_t width) {
  auto* out = reinterpret_cast<BF16*>(row);
  for_each_vector(width + (width & 1), [&](int64_t i, int lanes) {
    const F32x16 value = load_padded(x, i, width);
    if (lanes == 16) {
      store(out + i, value);
    } else {
      store_n(out + i, value, lanes);
    }
  });
}

// Rotate the first rotary_dim elements of each head: pairs (i, i + rotary_dim / 2) by the angle whose cos[i] and
// sin[i] are given; the rest of the head is copied.
static void rope(const float* x, const float* cos, const float* sin, float* out, int64_t num_heads, int64_t head_dim,
                 int64_t rotary_dim) {
  const int64_t half = rotary_dim / 2;
  for (int64_t h = 0; h < num_heads; ++h, x += head_dim, out += head_dim) {
    for_each_vector(half, [&](int64_t i, int lanes) {
      const F32x16 a = load_lanes(x + i, lanes), b = load_lanes(x + half + i, lanes);
      const F32x16 c = load_lanes(cos + i, lanes), s = load_lanes(sin + i, lanes);
      store_lanes(out + i, fma(a, c, neg(mul(b, s))), lanes);
      store_lanes(out + half + i, fma(b, c, mul(a, s)), lanes);
    });
    if (out != x)
      for_each_vector(head_dim - rotary_dim, [&](int64_t i, int lanes) {
        store_lanes(out + rotary_dim + i, load_lanes(x + rotary_dim + i, lanes), lanes);
      });
  }
}

static void add(const float* x, const float* y, float* out, int64_t n) {
  for_each_vector(n, [&](int64_t i, int lanes) {
    store_lanes(out + i, add(load_lanes(x + i, lanes), load_lanes(y + i, lanes)), lanes);
  });
}

// gelu_tanh: x/2 · (1 + tanh(u)) = x · sigmoid(2u), u = √(2/π) (x + 0.044715 x³).
KVW_INLINE F32x16 gelu_tanh(F32x16 x) {
  const F32x16 cubic = fma(mul(x, x), set1(0.044715f), set1(1.0f));
  return mul(x, sigmoid(mul(mul(x, set1(1.5957691f)), cubic)));  // 2 √(2/π)
}

template <class Function>
KVW_INLINE void gated(const float* gate, const float* up, float* out, int64_t n, Function&& activate) {
  for_each_vector(n, [&](int64_t i, int lanes) {
    store_lanes(out + i, mul(activate(load_lanes(gate + i, lanes)), load_lanes(up + i, lanes)), lanes);
  });
}

// out = activation(gate) · up.
static void glu(const float* gate, const float* up, float* out, int64_t n, Activation activation) {
  switch (activation) {
    case Activation::silu:
      return gated(gate, up, out, n, [](F32x16 x) { return mul(x, sigmoid(x)); });
    case Activation::gelu_tanh:
      return gated(gate, up, out, n, [](F32x16 x) { return gelu_tanh(x); });
    case Activation::gelu_erf:
      return gated(gate, up, out, n, [](F32x16 x) { return mul(x, normal_cdf(x)); });
    case Activation::relu:
      return gated(gate, up, out, n, [](F32x16 x) { return max(zero(), x); });
  }
}

// out = cap · tanh(x / cap).
static void softcap(const float* x, float* out, int64_t n, float cap) {
  const F32x16 limit = set1(cap), inverse = set1(1.0f / cap);
  for_each_vector(n, [&](int64_t i, int lanes) {
    store_lanes(out + i, mul(limit, tanh(mul(load_lanes(x + i, lanes), inverse))), lanes);
  });
}

}  // namespace kvw::KVW_ISA
