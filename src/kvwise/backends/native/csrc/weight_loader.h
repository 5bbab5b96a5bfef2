// Fills weights from files on the threads of a pool: rows are read, converted where another type is wanted,
// interleaved, and put where they are held. Or the bytes are read as they are held, from a file that was made of them.
//
// Files are copied piece by piece with pread and never mapped, so that one that shrinks is an error and not a signal,
// and nothing of it counts as this process's memory. Beside the weights a thread holds one staging buffer, until
// finish(). Knows no file's format: where rows lie, and in which order, it is told.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

#include "layout.h"
#include "memory.h"
#include "pool.h"

namespace kvw {

// Where the rows of one weight lie: one after the other in an open file, which must stay open.
struct StoredRows {
  WeightType type = WeightType::f32;
  int file = -1;
  int64_t offset = 0;
  // Not 0: rows of so many heads, each head's rotary pairs side by side; they are held in halves (row_order.py).
  int64_t interleaved_heads = 0;
};

// Where the bytes of one weight lie as they are held, and what they must be.
struct HeldBytes {
  int file = -1;
  int64_t offset = 0;
  uint64_t checksum = 0;  // held_checksum
};

// The checksum of a weight as it is held: of its pieces' checksums.
uint64_t held_checksum(ThreadPool& pool, const uint8_t* bytes, int64_t nbytes);

// A file could not be read, or holds something else. `weight` is the number that the weight was given with.
struct ReadError : NativeError {
  ReadError(int weight, const std::string& problem) : NativeError(problem), weight(weight) {}
  int weight;
};

class WeightLoader {
 public:
  WeightLoader() = default;
  ~WeightLoader() { cancel(); }
  WeightLoader(const WeightLoader&) = delete;
  WeightLoader& operator=(const WeightLoader&) = delete;

  // What start() will fill; `weight` is any number, for ReadError. Rows of floats may become those of a type that has a
  // RowQuantizer. Throws NativeError for other conversions.
  void read_matrix(int weight, const WeightMatrix& matrix, const StoredRows& stored);
  void read_vector(int weight, float* target, int64_t n, const StoredRows& stored);
  void copy(int weight, uint8_t* target, int64_t nbytes, const HeldBytes& held);

  // The pool's workers begin; the pool must do nothing else until finish() or cancel().
  void start(ThreadPool& pool);
  int64_t stored_bytes() const;

  // Helps the workers and waits for them. tick(stored bytes done) is called by this thread now and then; when it throws,
  // loading is given up and its exception comes out here. Throws ReadError. Nothing is left to fill afterwards.
  void finish(const std::function<void(int64_t)>& tick);

  // Gives up what is under way, and waits until no thread touches a weight any more.
  void cancel();

  // One piece of work: for the pool.
  void operator()(int64_t piece, int thread);

 private:
  // One of: a matrix of rows; a vector, as a matrix of one input without tiles; bytes to copy.
  struct Weight {
    int number;
    WeightMatrix matrix;
    StoredRows stored;
    int64_t row_bytes = 0;
    float* vector = nullptr;
    uint8_t* target = nullptr;
    int64_t nbytes = 0;
    HeldBytes held;
    std::vector<uint64_t> checksums;  // of the pieces that were copied
  };
  // Tiles [first, last) of a weight; bytes, where they are copied; of a vector, all of it.
  struct Piece {
    int weight;
    int64_t first;
    int64_t last;
  };
  // Of one thread; each grows to what the largest weight needs.
  struct Staging {
    std::vector<uint8_t> rows;       // as stored
    std::vector<float> wide;         // one of them
    std::vector<uint8_t> converted;  // a tile's, in the type that is held
    std::vector<uint8_t> zeros;      // a row
  };

  void fill_vector(const Weight& weight, Staging& staging);
  void fill_tiles(const Weight& weight, int64_t first, int64_t last, Staging& staging);
  void convert(const Weight& weight, TileRows& rows, int count, Staging& staging);
  void copy_piece(Weight& weight, int64_t first, int64_t last);
  void check_copies();
  void fail(std::exception_ptr error);
  void reset();

  std::vector<Weight> weights_;
  std::vector<Piece> pieces_;
  std::vector<Staging> staging_;
  ThreadPool* pool_ = nullptr;  // not null between start() and the end
  std::atomic<int64_t> bytes_done_{0};
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::exception_ptr error_;  // the first one
};

}  // namespace kvw
