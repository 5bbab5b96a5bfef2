#include "memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace kvw {
namespace {

constexpr size_t kHugePage = size_t{1} << 21;

size_t align_up(size_t n, size_t alignment) { return (n + alignment - 1) / alignment * alignment; }

}  // namespace

Mapping::Mapping(size_t bytes, Pages pages, const std::string& what) {
  if (bytes == 0) return;
  // A huge page must start at a multiple of its size: map one more and start inside. The rest is never touched.
  const bool huge = pages == Pages::huge && bytes >= kHugePage;
  mapped_ = align_up(bytes, 4096) + (huge ? kHugePage : 0);
  base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base_ == MAP_FAILED) {
    base_ = nullptr;
    throw RefusedError("can't allocate " + std::to_string(bytes) + " bytes for the " + what + ": " +
                      std::strerror(errno));
  }
  const auto address = reinterpret_cast<uintptr_t>(base_);
  bytes_ = reinterpret_cast<uint8_t*>(huge ? align_up(address, kHugePage) : address);
  size_ = bytes;
#ifdef MADV_HUGEPAGE
  // Advice only: a kernel without transparent huge pages refuses it, and nothing is lost.
  madvise(bytes_, align_up(bytes, 4096), huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
}

void Mapping::reset() {
  if (base_ != nullptr) munmap(base_, mapped_);
  base_ = nullptr;
  bytes_ = nullptr;
  size_ = mapped_ = 0;
}

void Mapping::swap(Mapping& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
  std::swap(base_, other.base_);
  std::swap(mapped_, other.mapped_);
}

}  // namespace kvw
