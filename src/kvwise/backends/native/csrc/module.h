// The extension module is put together from these parts.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "kernel_table.h"

namespace kvw {

namespace nb = nanobind;

using BytesIn = nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu>;
using FloatsIn = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using IntsIn = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;

// The enums of kernel_table.h by the names that Python uses. Throw NativeError for an unknown one.
WeightType weight_type_named(const std::string& name);
KvType kv_type_named(const std::string& name);
Activation activation_named(const std::string& name);

void bind_model(nb::module_& m);    // module_model.cpp: what the backend runs
void bind_kernels(nb::module_& m);  // module_kernels.cpp: single kernels, for tests and benchmarks
void bind_attention(nb::module_& kernels);  // module_attention.cpp, called by bind_kernels
void bind_machine_limits(nb::module_& m);   // module_limits.cpp: what the machine can do at most, for benchmarks

}  // namespace kvw
