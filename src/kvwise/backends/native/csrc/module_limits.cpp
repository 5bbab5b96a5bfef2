// What this machine can do at most, measured by the kernels of limits.inl on the engine's own pool: for benchmarks.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>

#include "isa.h"
#include "memory.h"
#include "module.h"
#include "pool.h"

namespace kvw {
namespace {

constexpr int64_t kPiece = 1024;  // bytes read from one stream before the next: far less than a page, so all stay warm
constexpr int64_t kLine = 64;
constexpr int kAccumulators = 12;  // of limits.inl
alignas(64) constexpr uint8_t kSeed[128] = {1, 2, 3};  // any operands that stay finite

// Seconds of each of `repeats` runs in which every thread does `work(thread's share)` once; one run before them is not
// counted: it wakes the threads and fills the caches.
std::vector<double> seconds_of(int threads, int repeats, const std::function<void(int64_t)>& work) {
  ThreadPool pool(threads);
  std::vector<double> seconds;
  for (int i = 0; i <= repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(threads, [&](int64_t item, int) { work(item); });
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (i > 0) seconds.push_back(taken.count());
  }
  return seconds;
}

// One pass over [p, p + bytes), cut into `streams` equal ranges that are read in turn, a piece at a time. Lines
// `ahead` bytes further in the same stream are asked for on the way (0: left to the hardware).
int32_t read_streams(const KernelTable& kernels, const uint8_t* p, int64_t bytes, int streams, int64_t ahead) {
  int32_t keep = 0;
  const int64_t range = bytes / streams;
  for (int64_t at = 0; at < range; at += kPiece) {
    for (int s = 0; s < streams; ++s) {
      const uint8_t* piece = p + s * range + at;
      if (ahead > 0) {
        for (int64_t line = 0; line < kPiece; line += kLine) __builtin_prefetch(piece + ahead + line, 0, 3);
      }
      keep += kernels.read_bytes(piece, kPiece);
    }
  }
  return keep;
}

std::vector<double> read_seconds(const std::string& isa, int64_t bytes, int threads, int streams, int64_t ahead,
                                 int passes, int repeats) {
  const KernelTable& kernels = kernels_named(isa);
  if (bytes < 1 || threads < 1 || streams < 1 || ahead < 0 || passes < 1 || repeats < 1) {
    throw NativeError("a bandwidth needs bytes, threads, streams, passes and repeats");
  }
  const int64_t unit = kPiece * streams;
  const int64_t share = bytes / threads / unit * unit;
  if (share < unit) throw NativeError("too few bytes for so many threads and streams");
  Mapping memory(static_cast<size_t>(share) * threads + static_cast<size_t>(ahead), Pages::huge, "benchmark");
  std::memset(memory.bytes(), 1, memory.size());
  std::atomic<int32_t> keep{0};
  nb::gil_scoped_release release;
  return seconds_of(threads, repeats, [&](int64_t i) {
    int32_t sum = 0;
    for (int pass = 0; pass < passes; ++pass) {
      sum += read_streams(kernels, memory.bytes() + i * share, share, streams, ahead);
    }
    keep += sum;
  });
}

#if defined(__x86_64__) && defined(__GNUC__)
#define KVW_HAS_AVX512_LOOPS 1

// rounds · 12 of one instruction on 64 bytes per operand, all operands in registers. The loop itself is assembly: GCC
// keeps accumulators of intrinsics, or of an asm statement inside a loop, in memory, which then measures stores.
#define KVW_ZERO(n) "vpxord %%zmm" n ", %%zmm" n ", %%zmm" n "\n\t"
#define KVW_OP(instruction, n) instruction " %%zmm12, %%zmm12, %%zmm" n "\n\t"
#define KVW_ROUNDS(name, instruction)                                                                                 \
  __attribute__((target("avx512f"))) int32_t name(int64_t rounds, const uint8_t*) {                                   \
    int32_t keep;                                                                                                     \
    asm volatile(                                                                                                     \
        KVW_ZERO("0") KVW_ZERO("1") KVW_ZERO("2") KVW_ZERO("3") KVW_ZERO("4") KVW_ZERO("5") KVW_ZERO("6")             \
        KVW_ZERO("7") KVW_ZERO("8") KVW_ZERO("9") KVW_ZERO("10") KVW_ZERO("11") KVW_ZERO("12")                        \
        "1:\n\t"                                                                                                      \
        KVW_OP(instruction, "0") KVW_OP(instruction, "1") KVW_OP(instruction, "2") KVW_OP(instruction, "3")           \
        KVW_OP(instruction, "4") KVW_OP(instruction, "5") KVW_OP(instruction, "6") KVW_OP(instruction, "7")           \
        KVW_OP(instruction, "8") KVW_OP(instruction, "9") KVW_OP(instruction, "10") KVW_OP(instruction, "11")         \
        "dec %0\n\tjnz 1b\n\tvmovd %%xmm0, %1"                                                                        \
        : "+r"(rounds), "=r"(keep)                                                                                    \
        :                                                                                                             \
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",  \
          "cc");                                                                                                      \
    return keep;                                                                                                      \
  }

KVW_ROUNDS(int8_rounds, "vpdpbusd")
KVW_ROUNDS(f32_rounds, "vfmadd231ps")
KVW_ROUNDS(bf16_rounds, "vdpbf16ps")
KVW_ROUNDS(f16_rounds, "vfmadd231ph")

bool has_f16_arithmetic() {  // CPUID leaf 7, EDX bit 23: older compilers don't know it by name
  unsigned a = 7, b = 0, c = 0, d = 0;
  asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return (d & (1u << 23)) != 0 && __builtin_cpu_supports("avx512f");
}
#endif

struct Arithmetic {
  int32_t (*rounds)(int64_t, const uint8_t*) = nullptr;
  int lanes = 0;  // multiply-adds of one instruction
};

// Which loop computes in `kind`; `rounds` is null where this machine has no such instruction.
Arithmetic arithmetic_named(const KernelTable& kernels, const std::string& kind) {
#if defined(KVW_HAS_AVX512_LOOPS)
  if (std::string(kernels.isa) == "avx512") {
    if (kind == "int8") return {int8_rounds, 64};
    if (kind == "f32") return {f32_rounds, 16};
    if (kind == "bf16" && __builtin_cpu_supports("avx512bf16")) return {bf16_rounds, 32};
    if (kind == "f16" && has_f16_arithmetic()) return {f16_rounds, 32};
    return {};
  }
#endif
  if (kind == "int8") return {kernels.dot_rounds, 64};
  if (kind == "f32") return {kernels.fma_rounds, 16};
  return {};
}

// Operations (two per multiply-add) per second of each run; empty where the machine has no such instruction.
std::vector<double> arithmetic_rates(const std::string& isa, const std::string& kind, int threads, int64_t rounds,
                                     int repeats) {
  const KernelTable& kernels = kernels_named(isa);
  if (threads < 1 || rounds < 1 || repeats < 1) throw NativeError("a rate needs threads, rounds and repeats");
  const Arithmetic arithmetic = arithmetic_named(kernels, kind);
  if (arithmetic.rounds == nullptr) return {};
  std::atomic<int32_t> keep{0};
  nb::gil_scoped_release release;
  auto rates = seconds_of(threads, repeats, [&](int64_t) { keep += arithmetic.rounds(rounds, kSeed); });
  const double operations = 2.0 * arithmetic.lanes * kAccumulators * static_cast<double>(rounds) * threads;
  for (double& value : rates) value = operations / value;
  return rates;
}

}  // namespace

void bind_machine_limits(nb::module_& m) {
  using namespace nb::literals;
  nb::module_ limits = m.def_submodule("limits", "What this machine can do at most, for benchmarks.");
  limits.def("read_seconds", &read_seconds, "isa"_a, "bytes"_a, "threads"_a, "streams"_a = 1, "ahead"_a = 0,
             "passes"_a = 1, "repeats"_a = 5,
             "Seconds of each of `repeats` runs: `passes` times over `bytes`, split among `threads`.");
  limits.def("arithmetic_rates", &arithmetic_rates, "isa"_a, "kind"_a, "threads"_a, "rounds"_a, "repeats"_a = 5,
             "Operations per second of each run for int8, f32, bf16 or f16; none where there is no such instruction.");
}

}  // namespace kvw
