// Which instruction sets this build has kernels for and this machine can run.
#pragma once

#include <string>
#include <vector>

#include "kernel_table.h"

namespace kvw {

// Names of the usable ones, best first; never empty: scalar runs everywhere.
std::vector<std::string> usable_isas();

// The kernels called `name`. Throws NativeError, saying which there are, when this machine can't run them.
// Whether `isa`'s kernels multiply pairs of bf16 on this machine, and faster than float32. vdpbf16ps runs at twice the
// rate of float32 on Zen 4 (470 beside 235 GFLOP/s with 2 threads) and at half of it on Emerald Rapids (164 beside 339),
// which tells itself apart by its float16 arithmetic.
bool pairs_are_fast(const std::string& isa);

const KernelTable& kernels_named(const std::string& name);

}  // namespace kvw
