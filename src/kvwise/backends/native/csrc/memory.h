// Page-aligned memory straight from the system, so that what is resident is what was touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace kvw {

// What a caller can act on: becomes a BackendError in Python. `expected` and `action` may be empty.
struct NativeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The system refused memory or threads.
struct RefusedError : NativeError {
  using NativeError::NativeError;
};

enum class Pages {
  small,  // 4 KiB pages whatever the system's default: a page is resident only once something in it was touched
  huge,   // 2 MiB pages where the system has them: for memory that is touched in full anyway
};

// A zero-filled, 64-byte aligned range; given back when this is destroyed.
class Mapping {
 public:
  Mapping() = default;
  // Throws RefusedError naming `what` when the system refuses. Zero bytes map nothing.
  Mapping(size_t bytes, Pages pages, const std::string& what);
  ~Mapping() { reset(); }
  Mapping(Mapping&& other) noexcept { swap(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    swap(other);
    return *this;
  }

  uint8_t* bytes() const { return bytes_; }
  size_t size() const { return size_; }
  void reset();

 private:
  void swap(Mapping& other) noexcept;

  uint8_t* bytes_ = nullptr;
  size_t size_ = 0;
  void* base_ = nullptr;
  size_t mapped_ = 0;
};

}  // namespace kvw
