// A lowered program with its weights, its KV pool and its arena: everything that one step needs, in one call.
//
// Built once, op by op, from Python (program.py); then run() computes steps. Knows nothing of requests beyond one
// step, and nothing of how a slot's place in the arena was chosen.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernel_table.h"
#include "layout.h"
#include "memory.h"
#include "pool.h"
#include "weight_loader.h"

namespace kvw {

// What the buffers were sized for, and the bounds of every number in a step.
struct ModelLimits {
  int64_t max_tokens = 0;
  int64_t max_logits_rows = 0;
  int64_t max_requests = 0;
  int64_t max_context = 0;
  int64_t num_blocks = 0;
};

// Bytes of each mapping, as the plan says.
struct ModelBytes {
  size_t weights = 0;
  size_t kv_pool = 0;
  size_t arena = 0;    // slots, then what attention shares, then one scratch per thread
  size_t shared = 0;   // included in arena
  size_t scratch = 0;  // of one thread; included in arena
  size_t logits = 0;
  size_t tables = 0;
};

// The arrays of a StepBatch, as int32; owned by the caller.
struct Step {
  int64_t num_tokens = 0;
  int64_t num_requests = 0;
  int64_t num_logits_rows = 0;
  int64_t max_blocks = 0;
  int64_t num_copies = 0;
  const int32_t* token_ids = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* slot_mapping = nullptr;
  const int32_t* query_starts = nullptr;
  const int32_t* context_lens = nullptr;
  const int32_t* block_tables = nullptr;
  const int32_t* logits_rows = nullptr;
  const int32_t* block_copies = nullptr;
};

// Where an activation lies: row r at bytes + r · row_bytes.
struct SlotPlace {
  uint8_t* bytes = nullptr;
  size_t row_bytes = 0;
  int64_t max_rows = 0;
  int64_t width = 0;  // elements of a row
  bool logits_rows = false;

  template <class T>
  T* row(int64_t r) const {
    return reinterpret_cast<T*>(bytes + static_cast<size_t>(r) * row_bytes);
  }
};

struct RopeTable {
  const float* cos = nullptr;  // [max_context, half], and sin right after it
  const float* sin = nullptr;
  int64_t half = 0;
};

struct KvLayer {
  uint8_t* bytes = nullptr;
  size_t block_bytes = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
};

// Items [0, n) cut into one range for each thread, to be claimed in order by it and, when their own are done, by others.
class Shares {
 public:
  explicit Shares(int threads) : ranges_(static_cast<size_t>(threads)) {}
  // Not while a claim is made.
  void deal(int64_t items) {
    const auto n = static_cast<int64_t>(ranges_.size());
    for (int64_t t = 0; t < n; ++t) {
      ranges_[t].next.store(items * t / n, std::memory_order_relaxed);
      ranges_[t].end = items * (t + 1) / n;
    }
  }
  // An item that nobody has; at most as many calls as there are items.
  int64_t claim(int thread) {
    for (size_t i = static_cast<size_t>(thread);; ++i) {
      Range& range = ranges_[i % ranges_.size()];
      const int64_t item = range.next.fetch_add(1, std::memory_order_relaxed);
      if (item < range.end) return item;
    }
  }

 private:
  struct alignas(64) Range {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::vector<Range> ranges_;
};

enum class OpKind { embed, rms_norm, quantize, narrow, matmul, rope, kv_store, attend, add, glu, gather_rows, softcap };

// One operation with all its operands; fields that a kind does not use stay empty. Slots and weights are handles.
struct NativeOp {
  OpKind kind{};
  int out = -1;             // none for kv_store
  std::vector<int> reads;   // embed: none; attention: q, k, v
  int weight = -1;          // matrix handle
  const float* vector = nullptr;  // norm weight or bias
  float scale = 1.0f;       // embed, attention
  float eps = 0.0f;
  float weight_offset = 0.0f;
  float cap = 0.0f;         // softcap, attention
  int64_t group = 0;        // norm, quantize
  bool twice = false;       // quantize
  int rope = -1;
  int layer = -1;
  int num_q_heads = 0;
  int head_dim = 0;
  int window = 0;
  Activation activation{};
};

class Model {
 public:
  // Throws NativeError when the instruction set can't run here or memory is refused.
  Model(const std::string& isa, int threads, const ModelLimits& limits, const ModelBytes& bytes, KvType kv_type);

  // ---- building; each returns a handle. Throws NativeError when something does not fit what was planned.
  int add_slot(bool in_logits, size_t offset, size_t row_bytes, int64_t width, bool logits_rows);
  int add_matrix(WeightType type, int64_t outputs, int64_t inputs);
  int add_vector(int64_t n);
  int add_rope(int64_t half);  // its table is zero until it is filled in
  int add_kv_layer(int num_kv_heads, int head_dim);
  void add_op(NativeOp op);
  const float* vector(int handle) const;
  // Where each weight comes from, by its number: matrices and vectors in the order in which they were added.
  void read_weight(int number, const StoredRows& stored);
  void copy_weight(int number, const HeldBytes& held);
  // Weights are read while the rest is built: by the pool's other threads from start_loading() on, by the caller's too
  // in finish_loading(), which is over when all are held. Between the two no weight may be added and no step run.
  void start_loading() { loader_.start(pool_); }
  void finish_loading(const std::function<void(int64_t)>& tick) { loader_.finish(tick); }
  void cancel_loading() { loader_.cancel(); }
  int64_t stored_bytes() const { return loader_.stored_bytes(); }  // of all weights to be read, in their files
  // Of each weight as it is held, once all are: offset in weights(), bytes, checksum.
  struct HeldRange {
    size_t offset;
    size_t nbytes;
    uint64_t checksum;
  };
  std::vector<HeldRange> held_ranges();
  // Groups the ops into regions; nothing may be added afterwards.
  void finish(int output);

  // ---- one step. Throws NativeError, before anything is written, when the step breaks a limit or another one runs.
  void run(const Step& step);

  // Seconds that each kind of region has taken since profiling began; nothing is measured before.
  void start_profile();
  struct Profile {
    double rows = 0, matmul = 0, attend = 0, gather = 0;
  };
  const Profile& profile() const { return profile_; }

  // The kind of each region, in order, with its number of ops: "matmul 3".
  std::vector<std::string> regions() const;
  const KernelTable& kernels() const { return *kernels_; }
  const ModelLimits& limits() const { return limits_; }
  const RopeTable& rope(int handle) const { return ropes_.at(handle); }
  int threads() const { return pool_.threads(); }
  const SlotPlace& output() const { return slots_[output_]; }
  const std::shared_ptr<Mapping>& logits() const { return logits_; }
  const Mapping& weights() const { return weights_; }
  const Mapping& kv_pool() const { return kv_pool_; }
  const Mapping& arena() const { return arena_; }
  const Mapping& tables() const { return tables_; }

 private:
  // Ops that share one pass over the pool of threads: row-local ops run row by row one after the other, matmuls
  // share their tiles, attention and gathering stand alone.
  struct Region {
    enum class Kind { rows, matmul, attend, gather } kind;
    std::vector<int> ops;
    bool logits_rows = false;
  };

  void check(const Step& step) const;
  void run_region(const Region& region, const Step& step);
  void copy_blocks(const Step& step);
  void run_rows(const Region& region, const Step& step);
  void run_matmuls(const Region& region, const Step& step);
  void run_attention(const NativeOp& op, const Step& step);
  void gather(const NativeOp& op, const Step& step);
  void run_row_op(const NativeOp& op, const Step& step, int64_t begin, int64_t end) const;
  AttentionArgs attention_args(const NativeOp& op, const Step& step) const;
  MatmulArgs matmul_args(const NativeOp& op) const;
  int64_t rows_of(const SlotPlace& slot, const Step& step) const;
  bool can_join(const Region& region, const NativeOp& op) const;
  bool overlaps_other_row(int slot, int other) const;
  void check_operands(const NativeOp& op) const;

  const KernelTable* kernels_;
  ModelLimits limits_;
  ModelBytes sizes_;
  KvType kv_type_;
  ThreadPool pool_;
  Shares shares_;
  Mapping weights_, kv_pool_, arena_, tables_;
  std::shared_ptr<Mapping> logits_;  // shared with the arrays that run() hands out
  size_t weights_used_ = 0, tables_used_ = 0, kv_used_ = 0;
  int64_t vocab_ = 0;
  int output_ = -1;

  std::atomic<bool> running_{false};
  bool profiling_ = false;
  Profile profile_;

  std::vector<SlotPlace> slots_;
  std::vector<WeightMatrix> matrices_;
  std::vector<const float*> vectors_;
  struct HeldWeight {
    uint8_t* bytes;
    size_t nbytes;
    int matrix;          // its handle, or -1 for a vector
    int64_t vector_size;
  };
  std::vector<HeldWeight> held_;  // by number
  std::vector<RopeTable> ropes_;
  std::vector<KvLayer> kv_layers_;
  std::vector<NativeOp> ops_;
  std::vector<Region> regions_;
  WeightLoader loader_;  // last: it is gone before what it writes to
};

}  // namespace kvw
