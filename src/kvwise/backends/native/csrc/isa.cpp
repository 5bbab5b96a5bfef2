#include "isa.h"

#include "memory.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace kvw {
namespace {

struct Candidate {
  const char* name;
  bool usable;
  const KernelTable& (*kernels)();
};

#if defined(__x86_64__)
// From CPUID itself: older clang does not take "f16c" in __builtin_cpu_supports.
bool supports_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
#endif

std::vector<Candidate> candidates() {
  std::vector<Candidate> all;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && supports_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni");
  all.push_back({"avx512", avx512, kernels_avx512});
  all.push_back({"avx2", avx2, kernels_avx2});
#elif defined(__aarch64__)
#if defined(__linux__)
  const unsigned long needed = HWCAP_ASIMDDP | HWCAP_FPHP | HWCAP_ASIMDHP;
  const bool neon = (getauxval(AT_HWCAP) & needed) == needed;
#else
  const bool neon = true;  // every Apple aarch64 machine has the dot product
#endif
  all.push_back({"neon", neon, kernels_neon});
#endif
  all.push_back({"scalar", true, kernels_scalar});
  return all;
}

}  // namespace

std::vector<std::string> usable_isas() {
  std::vector<std::string> names;
  for (const Candidate& c : candidates()) {
    if (c.usable) names.emplace_back(c.name);
  }
  return names;
}

bool pairs_are_fast(const std::string& isa) {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (isa != "avx512" || !__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) || !(eax >> 5 & 1)) return false;  // bf16
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && !(edx >> 23 & 1);                                // float16
#else
  static_cast<void>(isa);
  return false;
#endif
}

const KernelTable& kernels_named(const std::string& name) {
  for (const Candidate& c : candidates()) {
    if (c.usable && name == c.name) return c.kernels();
  }
  std::string known;
  for (const std::string& usable : usable_isas()) known += (known.empty() ? "" : ", ") + usable;
  throw NativeError("this machine can't run kernels for '" + name + "'; it can run: " + known);
}

}  // namespace kvw
