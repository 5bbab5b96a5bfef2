#include "weight_loader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "checksum.h"
#include "row_quantizers.h"

namespace kvw {
namespace {

using Clock = std::chrono::steady_clock;

// A piece is claimed by one thread. Threads that fault the same huge page in would each clear one, so a piece is as
// large as a huge page: only its ends are shared.
constexpr int64_t kPieceBytes = int64_t{1} << 21;
// Read at once: far more than a call costs, and still in a core's own cache when it is interleaved.
constexpr int64_t kReadBytes = int64_t{1} << 18;
constexpr auto kTick = std::chrono::milliseconds(50);

// The stored row that becomes row `row`, of `rows` in all.
int64_t stored_row(int64_t row, int64_t rows, int64_t interleaved_heads) {
  if (interleaved_heads == 0) return row;
  const int64_t head_rows = rows / interleaved_heads, pairs = head_rows / 2, in_head = row % head_rows;
  return row - in_head + 2 * (in_head % pairs) + in_head / pairs;
}

// Bytes [offset, offset + n) of the file. Throws what the system says, as text.
void read_exactly(int file, int64_t offset, int64_t n, uint8_t* out) {
  while (n > 0) {
    const ssize_t got = pread(file, out, static_cast<size_t>(n), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw NativeError(std::strerror(errno));
    if (got == 0) throw NativeError("the file ends before the weight does");
    out += got;
    offset += got;
    n -= got;
  }
}

bool is_float(WeightType type) {
  return type == WeightType::f32 || type == WeightType::f16 || type == WeightType::bf16;
}

uint64_t checksum_of(const std::vector<uint64_t>& sums) {
  return checksum(reinterpret_cast<const uint8_t*>(sums.data()), static_cast<int64_t>(sums.size() * sizeof(uint64_t)));
}

template <class T>
T* at_least(std::vector<T>& buffer, int64_t n) {
  if (buffer.size() < static_cast<size_t>(n)) buffer.resize(static_cast<size_t>(n));
  return buffer.data();
}

}  // namespace

uint64_t held_checksum(ThreadPool& pool, const uint8_t* bytes, int64_t nbytes) {
  std::vector<uint64_t> sums(static_cast<size_t>((nbytes + kPieceBytes - 1) / kPieceBytes));
  pool.run(static_cast<int64_t>(sums.size()), [&](int64_t piece, int) {
    const int64_t first = piece * kPieceBytes;
    sums[static_cast<size_t>(piece)] = checksum(bytes + first, std::min(kPieceBytes, nbytes - first));
  });
  return checksum_of(sums);
}

void WeightLoader::read_matrix(int number, const WeightMatrix& matrix, const StoredRows& stored) {
  if (stored.type != matrix.type && !(is_float(stored.type) && row_quantizer(matrix.type))) {
    throw NativeError("a matrix can't be converted from the type that is stored to the one that was planned");
  }
  Weight weight{};
  weight.number = number;
  weight.matrix = matrix;
  weight.stored = stored;
  weight.row_bytes = stored_row_bytes(stored.type, matrix.inputs);
  weight.nbytes = matrix.outputs * weight.row_bytes;
  const int64_t tiles = num_tiles(matrix.outputs);
  const int64_t step = std::max<int64_t>(1, kPieceBytes / static_cast<int64_t>(matrix.tile_bytes));
  for (int64_t first = 0; first < tiles; first += step) {
    pieces_.push_back({static_cast<int>(weights_.size()), first, std::min(first + step, tiles)});
  }
  weights_.push_back(std::move(weight));
}

void WeightLoader::read_vector(int number, float* target, int64_t n, const StoredRows& stored) {
  if (!is_float(stored.type)) throw NativeError("a vector must be stored as f32, f16 or bf16");
  Weight weight{};
  weight.number = number;
  weight.matrix.outputs = n;
  weight.matrix.inputs = 1;
  weight.stored = stored;
  weight.row_bytes = stored_row_bytes(stored.type, 1);
  weight.nbytes = n * weight.row_bytes;
  weight.vector = target;
  pieces_.push_back({static_cast<int>(weights_.size()), 0, 1});
  weights_.push_back(std::move(weight));
}

void WeightLoader::copy(int number, uint8_t* target, int64_t nbytes, const HeldBytes& held) {
  Weight weight{};
  weight.number = number;
  weight.target = target;
  weight.nbytes = nbytes;
  weight.held = held;
  weight.checksums.resize(static_cast<size_t>((nbytes + kPieceBytes - 1) / kPieceBytes));
  for (int64_t first = 0; first < nbytes; first += kPieceBytes) {
    pieces_.push_back({static_cast<int>(weights_.size()), first, std::min(first + kPieceBytes, nbytes)});
  }
  weights_.push_back(std::move(weight));
}

void WeightLoader::start(ThreadPool& pool) {
  pool_ = &pool;
  staging_.resize(static_cast<size_t>(pool.threads()));
  pool.start(static_cast<int64_t>(pieces_.size()), *this);
}

void WeightLoader::finish(const std::function<void(int64_t)>& tick) {
  if (pool_ == nullptr) return;
  auto next = Clock::now() + kTick;
  pool_->finish([&] {
    if (stopped_ || Clock::now() < next) return;
    try {
      tick(bytes_done_.load(std::memory_order_relaxed));
    } catch (...) {
      fail(std::current_exception());
    }
    next = Clock::now() + kTick;
  });
  if (!stopped_) check_copies();
  const std::exception_ptr error = error_;
  reset();
  if (error) std::rethrow_exception(error);
}

void WeightLoader::check_copies() {
  for (const Weight& weight : weights_) {
    if (weight.target != nullptr && checksum_of(weight.checksums) != weight.held.checksum) {
      fail(std::make_exception_ptr(ReadError(weight.number, "its bytes are not those that were written")));
    }
  }
}

void WeightLoader::reset() {
  pool_ = nullptr;
  staging_ = {};
  pieces_ = {};
  weights_ = {};
  error_ = nullptr;
  bytes_done_ = 0;
  stopped_ = false;
}

void WeightLoader::cancel() {
  if (pool_ == nullptr) return;
  stopped_ = true;
  pool_->finish([] {});
  reset();
}

void WeightLoader::fail(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  stopped_ = true;
}

void WeightLoader::operator()(int64_t index, int thread) {
  if (stopped_.load(std::memory_order_relaxed)) return;
  const Piece& piece = pieces_[static_cast<size_t>(index)];
  Weight& weight = weights_[static_cast<size_t>(piece.weight)];
  Staging& staging = staging_[static_cast<size_t>(thread)];
  try {
    if (weight.target != nullptr) return copy_piece(weight, piece.first, piece.last);
    if (weight.vector != nullptr) return fill_vector(weight, staging);
    const int64_t step = std::max<int64_t>(1, kReadBytes / (kLanes * weight.row_bytes));
    for (int64_t first = piece.first; first < piece.last && !stopped_; first += step) {
      fill_tiles(weight, first, std::min(first + step, piece.last), staging);
    }
  } catch (const NativeError& error) {
    fail(std::make_exception_ptr(ReadError(weight.number, error.what())));
  } catch (...) {
    fail(std::current_exception());
  }
}

void WeightLoader::copy_piece(Weight& weight, int64_t first, int64_t last) {
  read_exactly(weight.held.file, weight.held.offset + first, last - first, weight.target + first);
  weight.checksums[static_cast<size_t>(first / kPieceBytes)] = checksum(weight.target + first, last - first);
  bytes_done_.fetch_add(last - first, std::memory_order_relaxed);
}

void WeightLoader::fill_vector(const Weight& weight, Staging& staging) {
  const int64_t n = weight.matrix.outputs, nbytes = n * weight.row_bytes;
  uint8_t* const read = at_least(staging.rows, nbytes);
  read_exactly(weight.stored.file, weight.stored.offset, nbytes, read);
  if (weight.stored.interleaved_heads == 0) {
    widen(weight.stored.type, read, n, weight.vector);
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = stored_row(i, n, weight.stored.interleaved_heads);
      widen(weight.stored.type, read + row * weight.row_bytes, 1, weight.vector + i);
    }
  }
  bytes_done_.fetch_add(nbytes, std::memory_order_relaxed);
}

void WeightLoader::fill_tiles(const Weight& weight, int64_t first, int64_t last, Staging& staging) {
  const WeightMatrix& matrix = weight.matrix;
  const int64_t row_bytes = weight.row_bytes;
  const int64_t begin = first * kLanes, end = std::min(last * kLanes, matrix.outputs);
  auto source = [&](int64_t row) { return stored_row(row, matrix.outputs, weight.stored.interleaved_heads); };
  int64_t low = source(begin), high = low;
  for (int64_t row = begin; row < end; ++row) {
    low = std::min(low, source(row));
    high = std::max(high, source(row));
  }
  const int64_t nbytes = (high + 1 - low) * row_bytes;
  uint8_t* const read = at_least(staging.rows, nbytes);
  read_exactly(weight.stored.file, weight.stored.offset + low * row_bytes, nbytes, read);
  const uint8_t* const zeros = at_least(staging.zeros, std::max(row_bytes, stored_row_bytes(matrix.type, matrix.inputs)));
  for (int64_t tile = first; tile < last; ++tile) {
    const int count = static_cast<int>(std::min<int64_t>(kLanes, end - tile * kLanes));
    TileRows rows;
    for (int lane = 0; lane < kLanes; ++lane) {
      rows.row[lane] = lane < count ? read + (source(tile * kLanes + lane) - low) * row_bytes : zeros;
    }
    if (weight.stored.type != matrix.type) convert(weight, rows, count, staging);
    repack_tile(matrix.type, matrix.inputs, rows,
                const_cast<uint8_t*>(matrix.bytes) + static_cast<size_t>(tile) * matrix.tile_bytes);
  }
  bytes_done_.fetch_add((end - begin) * row_bytes, std::memory_order_relaxed);
}

// The first `count` rows become rows of the type that is held.
void WeightLoader::convert(const Weight& weight, TileRows& rows, int count, Staging& staging) {
  const WeightMatrix& matrix = weight.matrix;
  const RowQuantizer quantize = row_quantizer(matrix.type);
  const int64_t row_bytes = stored_row_bytes(matrix.type, matrix.inputs);
  float* const wide = at_least(staging.wide, matrix.inputs);
  uint8_t* const converted = at_least(staging.converted, kLanes * row_bytes);
  for (int lane = 0; lane < count; ++lane) {
    widen(weight.stored.type, rows.row[lane], matrix.inputs, wide);
    if (!all_finite(wide, matrix.inputs)) throw NativeError("it holds numbers that are not finite");
    quantize(wide, matrix.inputs, converted + lane * row_bytes);
    rows.row[lane] = converted + lane * row_bytes;
  }
}

int64_t WeightLoader::stored_bytes() const {
  int64_t total = 0;
  for (const Weight& weight : weights_) total += weight.nbytes;
  return total;
}

}  // namespace kvw
