// Building a Model: memory, weights, and the grouping of ops into regions.
#include <algorithm>

#include "isa.h"
#include "model.h"

namespace kvw {
namespace {

constexpr size_t kLine = 64;

size_t align_up(size_t n) { return (n + kLine - 1) / kLine * kLine; }

// Takes `bytes` from a mapping, in order.
uint8_t* take(const Mapping& mapping, size_t& used, size_t bytes, const char* what) {
  const size_t end = used + align_up(bytes);
  if (end > mapping.size()) throw NativeError(std::string(what) + " need more bytes than were planned");
  uint8_t* place = mapping.bytes() + used;
  used = end;
  return place;
}

bool is_row_op(OpKind kind) {
  return kind != OpKind::matmul && kind != OpKind::attend && kind != OpKind::gather_rows;
}

}  // namespace

Model::Model(const std::string& isa, int threads, const ModelLimits& limits, const ModelBytes& bytes, KvType kv_type)
    : kernels_(&kernels_named(isa)),
      limits_(limits),
      sizes_(bytes),
      kv_type_(kv_type),
      pool_(threads),
      shares_(pool_.threads()),
      weights_(bytes.weights, Pages::huge, "weights"),
      kv_pool_(bytes.kv_pool, Pages::small, "KV pool"),
      arena_(bytes.arena, Pages::small, "activations"),
      tables_(bytes.tables, Pages::small, "rotary tables"),
      logits_(std::make_shared<Mapping>(bytes.logits, Pages::small, "logits")) {}

int Model::add_slot(bool in_logits, size_t offset, size_t row_bytes, int64_t width, bool logits_rows) {
  const Mapping& mapping = in_logits ? *logits_ : arena_;
  const size_t beyond_slots = in_logits ? 0 : sizes_.shared + sizes_.scratch * static_cast<size_t>(pool_.threads());
  const int64_t max_rows = logits_rows ? limits_.max_logits_rows : limits_.max_tokens;
  if (offset + row_bytes * static_cast<size_t>(max_rows) + beyond_slots > mapping.size()) {
    throw NativeError("a slot ends outside the arena");
  }
  slots_.push_back({mapping.bytes() + offset, row_bytes, max_rows, width, logits_rows});
  return static_cast<int>(slots_.size()) - 1;
}

int Model::add_matrix(WeightType type, int64_t outputs, int64_t inputs) {
  WeightMatrix matrix;
  matrix.type = type;
  matrix.outputs = outputs;
  matrix.inputs = inputs;
  matrix.tile_bytes = static_cast<size_t>(tile_bytes(type, inputs));
  const size_t nbytes = matrix.tile_bytes * static_cast<size_t>(num_tiles(outputs));
  uint8_t* const place = take(weights_, weights_used_, nbytes, "weights");
  matrix.bytes = place;
  matrices_.push_back(matrix);
  const int handle = static_cast<int>(matrices_.size()) - 1;
  held_.push_back({place, nbytes, handle, 0});
  return handle;
}

int Model::add_vector(int64_t n) {
  const size_t nbytes = sizeof(float) * static_cast<size_t>(n);
  uint8_t* const place = take(weights_, weights_used_, nbytes, "weights");
  vectors_.push_back(reinterpret_cast<float*>(place));
  held_.push_back({place, nbytes, -1, n});
  return static_cast<int>(vectors_.size()) - 1;
}

void Model::read_weight(int number, const StoredRows& stored) {
  const HeldWeight& held = held_.at(static_cast<size_t>(number));
  if (held.matrix >= 0) {
    loader_.read_matrix(number, matrices_[static_cast<size_t>(held.matrix)], stored);
  } else {
    loader_.read_vector(number, reinterpret_cast<float*>(held.bytes), held.vector_size, stored);
  }
}

void Model::copy_weight(int number, const HeldBytes& bytes) {
  const HeldWeight& held = held_.at(static_cast<size_t>(number));
  loader_.copy(number, held.bytes, static_cast<int64_t>(held.nbytes), bytes);
}

std::vector<Model::HeldRange> Model::held_ranges() {
  std::vector<HeldRange> ranges;
  for (const HeldWeight& held : held_) {
    ranges.push_back({static_cast<size_t>(held.bytes - weights_.bytes()), held.nbytes,
                      held_checksum(pool_, held.bytes, static_cast<int64_t>(held.nbytes))});
  }
  return ranges;
}

const float* Model::vector(int handle) const { return handle < 0 ? nullptr : vectors_.at(handle); }

int Model::add_rope(int64_t half) {
  const size_t count = static_cast<size_t>(limits_.max_context * half);
  const auto* cos = reinterpret_cast<float*>(take(tables_, tables_used_, 2 * sizeof(float) * count, "rotary tables"));
  ropes_.push_back({cos, cos + count, half});
  return static_cast<int>(ropes_.size()) - 1;
}

int Model::add_kv_layer(int num_kv_heads, int head_dim) {
  KvLayer layer;
  layer.num_kv_heads = num_kv_heads;
  layer.head_dim = head_dim;
  layer.block_bytes = static_cast<size_t>(num_kv_heads) * kv_head_bytes(kv_type_, head_dim);
  layer.bytes = take(kv_pool_, kv_used_, layer.block_bytes * static_cast<size_t>(limits_.num_blocks), "KV blocks");
  kv_layers_.push_back(layer);
  return static_cast<int>(kv_layers_.size()) - 1;
}

void Model::check_operands(const NativeOp& op) const {
  auto check = [](bool fine) {
    if (!fine) throw NativeError("the program names something that was not declared");
  };
  const int num_slots = static_cast<int>(slots_.size());
  check(op.out < num_slots && (op.out >= 0 || op.kind == OpKind::kv_store));
  for (int read : op.reads) check(read >= 0 && read < num_slots);
  if (op.kind == OpKind::matmul || op.kind == OpKind::embed) {
    check(op.weight >= 0 && op.weight < static_cast<int>(matrices_.size()));
  }
  if (op.kind == OpKind::rope) check(op.rope >= 0 && op.rope < static_cast<int>(ropes_.size()));
  if (op.kind == OpKind::kv_store || op.kind == OpKind::attend) {
    check(op.reads.size() == 3 && op.layer >= 0 && op.layer < static_cast<int>(kv_layers_.size()));
  }
  if (op.kind == OpKind::matmul) {
    const WeightMatrix& weight = matrices_[op.weight];
    check(op.reads.size() == 1 && slots_[op.reads[0]].width == weight.inputs);
    check(slots_[op.out].width == weight.outputs);
    const size_t x_bytes = slots_[op.reads[0]].row_bytes;
    const Activations kind = activations_of(x_bytes, weight.type, weight.inputs);
    const bool refused = kind == Activations::bf16 && !pairs_are_fast(kernels_->isa);
    if (refused || x_bytes != row_bytes_of(kind, weight.inputs)) {
      throw NativeError("the program was not lowered for this backend: a matmul reads the wrong kind of activation");
    }
  }
}

void Model::add_op(NativeOp op) {
  check_operands(op);
  if (op.kind == OpKind::embed) {
    const int64_t vocab = matrices_[op.weight].outputs;
    vocab_ = vocab_ == 0 ? vocab : std::min(vocab_, vocab);
  }
  ops_.push_back(std::move(op));
}

// True when the two slots share bytes, but not row by row: then an op on one row could destroy another's.
bool Model::overlaps_other_row(int slot, int other) const {
  if (slot < 0 || other < 0) return false;
  const SlotPlace &a = slots_[slot], &b = slots_[other];
  if (a.bytes == b.bytes && a.row_bytes == b.row_bytes) return false;
  return a.bytes < b.bytes + b.row_bytes * b.max_rows && b.bytes < a.bytes + a.row_bytes * a.max_rows;
}

// The arena lets slots share bytes when their lives, counted in ops, do not overlap. Inside a region rows and tiles
// run apart from each other, so that an op may join only if it touches nothing that another row of the region's
// earlier ops still uses.
bool Model::can_join(const Region& region, const NativeOp& op) const {
  const bool logits_rows = op.out >= 0 && slots_[op.out].logits_rows;
  if (region.kind == Region::Kind::rows) {
    if (!is_row_op(op.kind) || region.logits_rows != logits_rows) return false;
  } else if (region.kind == Region::Kind::matmul) {
    if (op.kind != OpKind::matmul || region.logits_rows != logits_rows) return false;
  } else {
    return false;
  }
  for (int index : region.ops) {
    const NativeOp& earlier = ops_[index];
    if (region.kind == Region::Kind::matmul) {
      const bool reads_result = std::count(op.reads.begin(), op.reads.end(), earlier.out) > 0;
      const bool same_place = slots_[op.out].bytes == slots_[earlier.out].bytes ||
                              slots_[op.out].bytes == slots_[earlier.reads[0]].bytes;
      if (reads_result || same_place) return false;
    }
    if (overlaps_other_row(op.out, earlier.out)) return false;
    for (int read : earlier.reads) {
      if (overlaps_other_row(op.out, read)) return false;
    }
    for (int read : op.reads) {
      if (overlaps_other_row(read, earlier.out)) return false;
    }
  }
  return true;
}

void Model::finish(int output) {
  output_ = output;
  if (output < 0 || output >= static_cast<int>(slots_.size())) throw NativeError("the program has no output");
  for (int i = 0; i < static_cast<int>(ops_.size()); ++i) {
    const NativeOp& op = ops_[i];
    if (regions_.empty() || !can_join(regions_.back(), op)) {
      Region region;
      region.kind = op.kind == OpKind::matmul        ? Region::Kind::matmul
                    : op.kind == OpKind::attend      ? Region::Kind::attend
                    : op.kind == OpKind::gather_rows ? Region::Kind::gather
                                                     : Region::Kind::rows;
      region.logits_rows = op.out >= 0 && slots_[op.out].logits_rows;
      regions_.push_back(std::move(region));
    }
    regions_.back().ops.push_back(i);
  }
}

std::vector<std::string> Model::regions() const {
  constexpr const char* kNames[] = {"rows", "matmul", "attention", "gather"};
  std::vector<std::string> names;
  for (const Region& region : regions_) {
    names.push_back(std::string(kNames[static_cast<int>(region.kind)]) + " " + std::to_string(region.ops.size()));
  }
  return names;
}

}  // namespace kvw
