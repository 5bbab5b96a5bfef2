// Exponential, hyperbolic tangent, sigmoid and the normal distribution over F32x16: range reduction and polynomials,
// no libm, the same bits on every instruction set.
//
// Polynomials are minimax fits in float64 (iteratively reweighted least squares on Chebyshev nodes), rounded to
// float32. A NaN stays a NaN. Errors are relative, in units of 2^-24, measured against float64 by the tests.
#pragma once

#include "vec.h"

namespace kvw::KVW_ISA {

// The nearest whole number, ties to even, for |x| < 2^22: at 1.5 · 2^23 a float32's last place is 1.
KVW_INLINE F32x16 nearest_whole(F32x16 x) {
  const F32x16 shift = set1(0x1.8p23f);
  return sub(add(x, shift), shift);
}

// 2^x for x <= 0 (up to a rounding error above); exactly 0 below -126, so also for -inf. Error < 2.
KVW_INLINE F32x16 exp2_nonpositive(F32x16 x) {
  const F32x16 n = nearest_whole(x);
  const F32x16 f = sub(x, n);  // exact, in [-0.5, 0.5]
  F32x16 p = set1(0.00015353362f);
  p = fma(p, f, set1(0.0013398875f));
  p = fma(p, f, set1(0.009618437f));
  p = fma(p, f, set1(0.055503324f));
  p = fma(p, f, set1(0.24022648f));
  p = fma(p, f, set1(0.6931472f));
  p = fma(p, f, set1(1.0f));
  return select(less(x, set1(-126.0f)), zero(), scale_by_power(p, n));
}

// e^x for x <= 0; exactly 0 where it would be below 2^-126. Error < 2 at any x: ln 2 is taken off in two parts.
KVW_INLINE F32x16 exp_nonpositive(F32x16 x) {
  const F32x16 n = nearest_whole(mul(x, set1(1.44269504f)));
  F32x16 r = fma(n, set1(-0.693359375f), x);  // 355/512: n times it is exact
  r = fma(n, set1(2.12194440e-4f), r);
  F32x16 p = set1(0.0013814467f);
  p = fma(p, r, set1(0.008368781f));
  p = fma(p, r, set1(0.041668393f));
  p = fma(p, r, set1(0.1666652f));
  p = fma(p, r, set1(0.49999994f));
  p = fma(mul(p, r), r, r);
  p = add(p, set1(1.0f));
  return select(less(x, set1(-87.33654f)), zero(), scale_by_power(p, n));
}

// 1 / (1 + e^-x), of full relative accuracy on both sides. Error < 5.
KVW_INLINE F32x16 sigmoid(F32x16 x) {
  const F32x16 e = exp_nonpositive(neg(abs(x)));
  const F32x16 numerator = select(less(x, zero()), e, set1(1.0f));
  return div(numerator, add(set1(1.0f), e));
}

// Error < 4: an odd polynomial to 0.55, (1 - e^-2|x|) / (1 + e^-2|x|) above.
KVW_INLINE F32x16 tanh(F32x16 x) {
  const F32x16 a = abs(x), square = mul(x, x);
  F32x16 p = set1(-0.0062742378f);
  p = fma(p, square, set1(0.021071678f));
  p = fma(p, square, set1(-0.05385231f));
  p = fma(p, square, set1(0.13332586f));
  p = fma(p, square, set1(-0.33333316f));
  const F32x16 small = fma(mul(p, square), x, x);
  const F32x16 e = exp_nonpositive(mul(set1(-2.0f), a));
  const F32x16 large = div(sub(set1(1.0f), e), add(set1(1.0f), e));
  return select(less(a, set1(0.55f)), small, copysign(large, x));
}

// Φ(x) = (1 + erf(x / √2)) / 2. The lower tail is e^(-x²/2) · polynomial(t), t = 1 / (1 + 0.3 |x|), so that it keeps
// its relative accuracy: error < 5 + x² / 2, the rounding of x².
KVW_INLINE F32x16 normal_cdf(F32x16 x) {
  const F32x16 a = abs(x);
  const F32x16 t = div(set1(1.0f), fma(a, set1(0.3f), set1(1.0f)));
  F32x16 p = set1(-0.020584648f);
  p = fma(p, t, set1(0.11221709f));
  p = fma(p, t, set1(-0.2276795f));
  p = fma(p, t, set1(0.191042f));
  p = fma(p, t, set1(-0.07877769f));
  p = fma(p, t, set1(0.09579324f));
  p = fma(p, t, set1(0.07852188f));
  p = fma(p, t, set1(0.11020554f));
  p = fma(p, t, set1(0.11957561f));
  p = fma(p, t, set1(0.119686484f));
  p = mul(p, t);
  const F32x16 tail = mul(p, exp_nonpositive(mul(mul(a, a), set1(-0.5f))));
  return select(less(zero(), x), sub(set1(1.0f), tail), tail);
}

}  // namespace kvw::KVW_ISA
