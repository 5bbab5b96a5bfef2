// Which instruction sets this build has kernels for and this machine can run.
#pragma once

#include <string>
#include <vector>

#include "kernel_table.h"

namespace kvw {

// Names of the usable ones, best first; never empty: scalar runs everywhere.
std::vector<std::string> usable_isas();

// The kernels called `name`. Throws NativeError, saying which there are, when this machine can't run them.
const KernelTable& kernels_named(const std::string& name);

}  // namespace kvw
