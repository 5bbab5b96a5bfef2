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

// One row to q8 (layout in kernel_table.h): scale = max|x| / 127, inverse = 1 / scale, q = nearest even (x · inverse),
// all in float32. A block whose max|x| is below 2^-120 is stored as zeros with scale 0, because its inverse could
// overflow; one with an infinity or a NaN as zeros with that scale, which makes every product with it a NaN.
// The last block of a width that is not a multiple of 32 is filled up with zeros.
static void quantize(const float* x, uint8_t* q8_row, int64_t width) {
  const int64_t blocks = (width + kQ8Block - 1) / kQ8Block;
  int8_t* const q = reinterpret_cast<int8_t*>(q8_row);
  uint8_t* const scales = q8_row + kQ8Block * blocks;
  uint8_t* const sums = scales + sizeof(float) * blocks;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t left = width - kQ8Block * b;
    const F32x16 x0 = left >= 16 ? load(x + 32 * b) : load_n(x + 32 * b, static_cast<int>(left));
    const F32x16 x1 = left >= 32   ? load(x + 32 * b + 16)
                      : left <= 16 ? zero()
                                   : load_n(x + 32 * b + 16, static_cast<int>(left) - 16);
    // Magnitudes compare as integers, where a NaN is above infinity.
    const int32_t largest = max_of(max(as_i32(abs(x0)), as_i32(abs(x1))));
    float amax;
    std::memcpy(&amax, &largest, sizeof amax);
    float scale = amax / 127.0f;
    I32x16 q0 = set1_i32(0), q1 = q0;
    if (largest < 0x03800000) {  // 2^-120
      scale = 0.0f;
    } else if (largest < 0x7F800000) {
      const F32x16 inverse = set1(1.0f / scale);
      q0 = to_i32(mul(x0, inverse));
      q1 = to_i32(mul(x1, inverse));
    }
    store_i8(q + 32 * b, q0);
    store_i8(q + 32 * b + 16, q1);
    const int16_t halves[2] = {static_cast<int16_t>(sum(q0)), static_cast<int16_t>(sum(q1))};  // |sum| <= 16 · 127
    std::memcpy(scales + 4 * b, &scale, sizeof scale);
    std::memcpy(sums + 4 * b, halves, sizeof halves);
  }
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
