// Rows of float32 rounded to the block types that weights can be converted to while they are loaded: one row each.
//
// Bit for bit what quantize() of checkpoint/quants.py makes of the same numbers, on every machine.
#pragma once

#include "kernel_table.h"

namespace kvw {

// x: n finite numbers, n a whole number of blocks; out: the row as a file would store it.
using RowQuantizer = void (*)(const float* x, int64_t n, uint8_t* out);

// Null for a type that nothing is converted to.
RowQuantizer row_quantizer(WeightType type);

bool all_finite(const float* x, int64_t n);

}  // namespace kvw
