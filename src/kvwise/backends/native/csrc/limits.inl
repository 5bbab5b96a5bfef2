// What this machine can do at most with these instructions: the denominators of benchmarks. Nothing else uses them.
#pragma once

#include "dot.h"
#include "vec.h"

namespace kvw::KVW_ISA {

// Reads n bytes (a multiple of 256) once, in order, as four vectors at a time; the result keeps the loads alive.
static int32_t read_bytes(const uint8_t* p, int64_t n) {
  I32x16 sum[4] = {set1_i32(0), set1_i32(0), set1_i32(0), set1_i32(0)};
  for (int64_t i = 0; i < n; i += 256) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[j] = add(sum[j], load_i32(reinterpret_cast<const int32_t*>(p + i + 64 * j)));
  }
  return kvw::KVW_ISA::sum(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

// rounds · 12 · 64 multiply-adds of 8-bit integers, all operands in registers.
static int32_t dot_rounds(int64_t rounds, const uint8_t* seed) {
  I32x16 acc[12];
#pragma GCC unroll 12
  for (int j = 0; j < 12; ++j) acc[j] = set1_i32(j);
  const Bytes64 w = load_bytes(seed);
  const Quad x = load_quad(reinterpret_cast<const int8_t*>(seed));
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) dot_bytes(acc[j], w, x);
  }
#pragma GCC unroll 12
  for (int j = 1; j < 12; ++j) acc[0] = add(acc[0], acc[j]);
  return sum(acc[0]);
}

// rounds · 12 · 16 multiply-adds of float32, all operands in registers.
static int32_t fma_rounds(int64_t rounds, const uint8_t* seed) {
  F32x16 acc[12];
  const F32x16 w = load(reinterpret_cast<const float*>(seed)), x = load(reinterpret_cast<const float*>(seed) + 16);
#pragma GCC unroll 12
  for (int j = 0; j < 12; ++j) acc[j] = set1(static_cast<float>(j));  // all different, or they would be computed once
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) acc[j] = fma(acc[j], x, w);
  }
#pragma GCC unroll 12
  for (int j = 1; j < 12; ++j) acc[0] = add(acc[0], acc[j]);
  return static_cast<int32_t>(max_of(acc[0]));
}

}  // namespace kvw::KVW_ISA
