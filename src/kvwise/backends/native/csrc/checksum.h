// 64 bits that tell whether bytes are still the ones that were written. Against accidents, not against an attacker.
//
// Four accumulators take a word each in turn: acc = rotated(acc ^ word) · odd. Every step can be undone, so that a
// single changed word always changes the result.
#pragma once

#include <cstdint>
#include <cstring>

namespace kvw {

constexpr uint64_t kChecksumFactor = 0x9e3779b97f4a7c15u;  // 2^64 over the golden ratio: odd, its bits well mixed

constexpr uint64_t checksum_step(uint64_t accumulator, uint64_t word) {
  const uint64_t mixed = accumulator ^ word;
  return (mixed << 29 | mixed >> 35) * kChecksumFactor;
}

// Of n bytes; a last partial word counts as filled up with zeros, and n counts too.
inline uint64_t checksum(const uint8_t* bytes, int64_t n) {
  uint64_t accumulators[4] = {1, 2, 3, 4};
  int64_t at = 0;
  for (; at + 32 <= n; at += 32) {
    uint64_t words[4];
    std::memcpy(words, bytes + at, sizeof words);
    for (int i = 0; i < 4; ++i) accumulators[i] = checksum_step(accumulators[i], words[i]);
  }
  for (int i = 0; at < n; at += 8, ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, static_cast<size_t>(n - at < 8 ? n - at : 8));
    accumulators[i] = checksum_step(accumulators[i], word);
  }
  uint64_t sum = static_cast<uint64_t>(n);
  for (const uint64_t accumulator : accumulators) sum = checksum_step(sum, accumulator);
  return sum;
}

}  // namespace kvw
