#include "module.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <utility>

#include "isa.h"
#include "layout.h"
#include "memory.h"

namespace kvw {
namespace {

template <class Enum, size_t N>
Enum named(const std::array<std::pair<const char*, Enum>, N>& table, const std::string& name, const char* what) {
  for (const auto& [known, value] : table) {
    if (name == known) return value;
  }
  throw NativeError(std::string("no native kernels for ") + what + " '" + name + "'");
}

constexpr std::array<std::pair<const char*, WeightType>, 16> kWeightTypes{{
    {"f32", WeightType::f32},
    {"f16", WeightType::f16},
    {"bf16", WeightType::bf16},
    {"q8_0", WeightType::q8_0},
    {"q4_0", WeightType::q4_0},
    {"q4_1", WeightType::q4_1},
    {"q5_0", WeightType::q5_0},
    {"q5_1", WeightType::q5_1},
    {"q2_k", WeightType::q2_k},
    {"q3_k", WeightType::q3_k},
    {"q4_k", WeightType::q4_k},
    {"q5_k", WeightType::q5_k},
    {"q6_k", WeightType::q6_k},
    {"i8", WeightType::i8},
    {"i4_64", WeightType::i4_64},
    {"i4_128", WeightType::i4_128},
}};

constexpr std::array<std::pair<const char*, KvType>, 5> kKvTypes{{
    {"f32", KvType::f32},
    {"f16", KvType::f16},
    {"bf16", KvType::bf16},
    {"int8", KvType::int8},
    {"int4", KvType::int4},
}};

constexpr std::array<std::pair<const char*, Activation>, 4> kActivations{{
    {"silu", Activation::silu},
    {"gelu_tanh", Activation::gelu_tanh},
    {"gelu_erf", Activation::gelu_erf},
    {"relu", Activation::relu},
}};

}  // namespace

WeightType weight_type_named(const std::string& name) { return named(kWeightTypes, name, "weight type"); }
KvType kv_type_named(const std::string& name) { return named(kKvTypes, name, "KV type"); }
Activation activation_named(const std::string& name) { return named(kActivations, name, "activation"); }

}  // namespace kvw

NB_MODULE(_native, m) {
  using namespace kvw;
  nb::set_leak_warnings(false);  // a program that ends with a model still loaded is no news to its user
  const auto native_error = nb::exception<NativeError>(m, "NativeError", PyExc_RuntimeError);
  nb::exception<RefusedError>(m, "RefusedError", native_error);
  m.def("isas", &usable_isas, "Instruction sets that this build has kernels for and this machine runs, best first.");
  m.def("pairs_are_fast", &pairs_are_fast, nb::arg("isa"),
        "Whether bf16 weights are best multiplied with bf16 activations here.");
  m.def(
      "tile_bytes", [](const std::string& type, int64_t inputs) { return tile_bytes(weight_type_named(type), inputs); },
      nb::arg("type"), nb::arg("inputs"), "Bytes of 16 interleaved output rows.");
  m.def(
      "attention_bytes",
      [](const std::string& isa, int num_q_heads, int num_kv_heads, int head_dim, int64_t max_context) {
        const KernelTable& kernels = kernels_named(isa);
        return std::pair{kernels.attention_scratch_bytes(num_q_heads, num_kv_heads, head_dim),
                         kernels.attention_shared_bytes(num_q_heads, num_kv_heads, head_dim, max_context)};
      },
      nb::arg("isa"), nb::arg("num_q_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("max_context"),
      "Bytes that attention of one layer needs per thread, and once for all threads.");
  m.attr("MAX_HEAD_DIM") = kMaxHeadDim;
  bind_model(m);
  bind_kernels(m);
  bind_machine_limits(m);
}
