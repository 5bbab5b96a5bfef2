// A vector of 16 float32 lanes, written once per instruction set: AVX-512 one register, AVX2 two, NEON four, scalar an
// array. Kernels (*.inl) are written over it alone, so that the same source gives the same bits everywhere.
//
// A kernel file defines one of KVW_ISA_SCALAR, KVW_ISA_AVX2, KVW_ISA_AVX512, KVW_ISA_NEON, then includes this; all
// lands in namespace kvw::KVW_ISA. Kernels must not use inline functions or templates of the standard library: the
// linker keeps one copy of those, and it could be the copy compiled for an instruction set this machine lacks.
//
// Bits: every operation here is exact by IEEE 754 (round to nearest even) or by its integer definition, and the
// sums over lanes have one tree. Not promised: the bits of a NaN, to_i32 out of int32's range.
//
//   load(p) store(p, x)                16 floats, any alignment
//   load_n(p, n) store_n(p, x, n)      the first n <= 16; load_n gives 0 in the others; no byte past n is touched
//   load_f16(p) load_bf16(p) ... store_f16(p, x) store_bf16(p, x) and _n forms   uint16_t storage, RNE
//   set1 zero add sub mul div fma(a,b,c)=a*b+c  max min (b where a or b is NaN) sqrt abs neg copysign(magnitude, sign)
//   I32x16: load_i32 store_i32 load_i8 store_i8 (low bytes) set1_i32 add sub mul bit_and shl<n>
//           shr<n> (arithmetic)
//   max(I32x16, I32x16)  sum max_of of an I32x16
//   scale_by_power(x, n) = x · 2^n for whole n in -126..127
//   to_f32(I32x16)  to_i32(F32x16), nearest even  as_f32 as_i32, the same bits
//   Mask16: lanes_below(n) less(a,b)   select(m, a, b) = m ? a : b
//   swap_lanes<n>(x) for n = 1, 2, 4, 8: lane i is x[i ^ n]
//   sum(x) = fixed tree: lanes i and i+8, then i+4, i+2, i+1;  max_of(x)
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__FAST_MATH__)
#error "kernels must not be compiled with -ffast-math: their results are compared bit for bit"
#endif

#define KVW_MEMBER inline __attribute__((always_inline))
#define KVW_INLINE static KVW_MEMBER
// After the parameters of a lambda. Left out of line, what it captures went wrong in GCC 12 at -O3 (-fipa-cp).
#define KVW_INLINE_LAMBDA __attribute__((always_inline))

#if defined(KVW_ISA_SCALAR)
#define KVW_ISA scalar
#include "vec_scalar.h"
#elif defined(KVW_ISA_AVX2)
#define KVW_ISA avx2
#include "vec_avx2.h"
#elif defined(KVW_ISA_AVX512)
#define KVW_ISA avx512
#include "vec_avx512.h"
#elif defined(KVW_ISA_NEON)
#define KVW_ISA neon
#include "vec_neon.h"
#else
#error "define KVW_ISA_SCALAR, KVW_ISA_AVX2, KVW_ISA_AVX512 or KVW_ISA_NEON before including vec.h"
#endif

namespace kvw::KVW_ISA {

// Storage types of float vectors, as tags: load(p) and store(p, x) choose by the pointer's type.
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

KVW_INLINE const uint16_t* bits_of(const F16* p) { return reinterpret_cast<const uint16_t*>(p); }
KVW_INLINE const uint16_t* bits_of(const BF16* p) { return reinterpret_cast<const uint16_t*>(p); }
KVW_INLINE uint16_t* bits_of(F16* p) { return reinterpret_cast<uint16_t*>(p); }
KVW_INLINE uint16_t* bits_of(BF16* p) { return reinterpret_cast<uint16_t*>(p); }

KVW_INLINE F32x16 load(const F16* p) { return load_f16(bits_of(p)); }
KVW_INLINE F32x16 load(const BF16* p) { return load_bf16(bits_of(p)); }
KVW_INLINE F32x16 load_n(const F16* p, int n) { return load_f16_n(bits_of(p), n); }
KVW_INLINE F32x16 load_n(const BF16* p, int n) { return load_bf16_n(bits_of(p), n); }
KVW_INLINE void store(F16* p, F32x16 x) { store_f16(bits_of(p), x); }
KVW_INLINE void store(BF16* p, F32x16 x) { store_bf16(bits_of(p), x); }
KVW_INLINE void store_n(F16* p, F32x16 x, int n) { store_f16_n(bits_of(p), x, n); }
KVW_INLINE void store_n(BF16* p, F32x16 x, int n) { store_bf16_n(bits_of(p), x, n); }

}  // namespace kvw::KVW_ISA
