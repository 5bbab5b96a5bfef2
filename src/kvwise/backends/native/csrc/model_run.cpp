// Running one step of a Model: check everything, then region by region.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "model.h"

namespace kvw {
namespace {

constexpr int64_t kInlineBytes = 48 * 1024;  // a pass over less than this is over before another thread is there
constexpr int64_t kItemsPerThread = 8;       // fine enough that a thread that is held up costs little
constexpr int64_t kStreamRows = 32;          // up to here memory, not arithmetic, is the limit
constexpr int64_t kRowBlockBytes = 512 * 1024;  // activations that one thread goes over again and again: in its L2

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

[[noreturn]] void refuse(const std::string& what) { throw NativeError(what); }

void check_range(const int32_t* values, int64_t n, int64_t limit, const char* what) {
  for (int64_t i = 0; i < n; ++i) {
    if (values[i] < 0 || values[i] >= limit) {
      refuse(std::string(what) + " " + std::to_string(values[i]) + " is outside 0 to " + std::to_string(limit - 1));
    }
  }
}

void check_count(int64_t n, int64_t least, int64_t most, const char* what) {
  if (n < least || n > most) {
    refuse("a step of " + std::to_string(n) + " " + what + ", loaded for " + std::to_string(least) + " to " +
           std::to_string(most));
  }
}

}  // namespace

void Model::check(const Step& s) const {
  check_count(s.num_tokens, 1, limits_.max_tokens, "tokens");
  check_count(s.num_requests, 1, limits_.max_requests, "requests");
  check_count(s.num_logits_rows, 0, limits_.max_logits_rows, "rows of logits");
  check_range(s.token_ids, s.num_tokens, vocab_, "token id");
  check_range(s.slot_mapping, s.num_tokens, limits_.num_blocks * kBlockTokens, "slot");
  check_range(s.logits_rows, s.num_logits_rows, s.num_tokens, "logits row");
  check_range(s.block_copies, 2 * s.num_copies, limits_.num_blocks, "block to copy");
  if (s.query_starts[0] != 0 || s.query_starts[s.num_requests] != s.num_tokens) {
    refuse("query_starts must run from 0 to the number of tokens");
  }
  for (int64_t r = 0; r < s.num_requests; ++r) {
    const int64_t context = s.context_lens[r], begin = s.query_starts[r], end = s.query_starts[r + 1];
    if (begin >= end || end > s.num_tokens) refuse("query_starts must rise within the step's tokens");
    check_count(context, end - begin, limits_.max_context, "tokens of context");
    if (ceil_div(context, kBlockTokens) > s.max_blocks) refuse("a block table is shorter than its context");
    check_range(s.block_tables + r * s.max_blocks, ceil_div(context, kBlockTokens), limits_.num_blocks, "block");
    for (int64_t t = begin; t < end; ++t) {
      if (s.positions[t] == context - (end - t)) continue;
      refuse("a request's positions must be consecutive and end its context");
    }
  }
}

void Model::run(const Step& step) {
  check(step);
  if (running_.exchange(true)) refuse("another step is being computed");
  struct Running {
    std::atomic<bool>& flag;
    ~Running() { flag.store(false); }
  } const until_return{running_};
  copy_blocks(step);
  for (const Region& region : regions_) {
    if (region.logits_rows && step.num_logits_rows == 0) continue;
    if (!profiling_) {
      run_region(region, step);
      continue;
    }
    const auto start = std::chrono::steady_clock::now();
    run_region(region, step);
    double* const total[] = {&profile_.rows, &profile_.matmul, &profile_.attend, &profile_.gather};
    *total[static_cast<int>(region.kind)] +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
}

void Model::start_profile() {
  profiling_ = true;
  profile_ = {};
}

void Model::run_region(const Region& region, const Step& step) {
  switch (region.kind) {
    case Region::Kind::rows: return run_rows(region, step);
    case Region::Kind::matmul: return run_matmuls(region, step);
    case Region::Kind::attend: return run_attention(ops_[region.ops[0]], step);
    case Region::Kind::gather: return gather(ops_[region.ops[0]], step);
  }
}

void Model::copy_blocks(const Step& step) {
  for (int64_t i = 0; i < step.num_copies; ++i) {
    const int64_t from = step.block_copies[2 * i], to = step.block_copies[2 * i + 1];
    if (from == to) continue;
    for (const KvLayer& layer : kv_layers_) {
      std::memcpy(layer.bytes + to * layer.block_bytes, layer.bytes + from * layer.block_bytes, layer.block_bytes);
    }
  }
}

int64_t Model::rows_of(const SlotPlace& slot, const Step& step) const {
  return slot.logits_rows ? step.num_logits_rows : step.num_tokens;
}

// ---- row-local ops ----

void Model::run_rows(const Region& region, const Step& step) {
  const int64_t rows = region.logits_rows ? step.num_logits_rows : step.num_tokens;
  int64_t row_bytes = 0;
  for (int i : region.ops) row_bytes += slots_[ops_[i].reads.empty() ? ops_[i].out : ops_[i].reads[0]].row_bytes;
  auto run_range = [&](int64_t begin, int64_t end) {
    for (int i : region.ops) run_row_op(ops_[i], step, begin, end);
  };
  if (pool_.threads() == 1 || rows * row_bytes < kInlineBytes) return run_range(0, rows);
  const int64_t per_item = std::max<int64_t>(1, ceil_div(rows, pool_.threads() * kItemsPerThread));
  pool_.run(ceil_div(rows, per_item), [&](int64_t item, int) {
    run_range(item * per_item, std::min(rows, (item + 1) * per_item));
  });
}

void Model::run_row_op(const NativeOp& op, const Step& step, int64_t begin, int64_t end) const {
  const KernelTable& k = *kernels_;
  if (op.kind == OpKind::kv_store) {
    k.kv_store(attention_args(op, step), begin, end);
    return;
  }
  const SlotPlace& out = slots_[op.out];
  for (int64_t r = begin; r < end; ++r) {
    const float* x = op.reads.empty() ? nullptr : slots_[op.reads[0]].row<const float>(r);
    float* y = out.row<float>(r);
    switch (op.kind) {
      case OpKind::embed: k.embed_row(matrices_[op.weight], step.token_ids[r], op.scale, y); break;
      case OpKind::rms_norm: k.rms_norm(x, op.vector, y, out.width, op.group, op.eps, op.weight_offset); break;
      case OpKind::quantize: k.quantize(x, out.row<uint8_t>(r), out.width, static_cast<int>(op.group), op.twice); break;
      case OpKind::narrow: k.narrow(x, out.row<uint8_t>(r), out.width); break;
      case OpKind::rope: {
        const RopeTable& table = ropes_[op.rope];
        const int64_t at = step.positions[r] * table.half;
        k.rope(x, table.cos + at, table.sin + at, y, out.width / op.head_dim, op.head_dim, 2 * table.half);
        break;
      }
      case OpKind::add: k.add(x, slots_[op.reads[1]].row<const float>(r), y, out.width); break;
      case OpKind::glu: k.glu(x, slots_[op.reads[1]].row<const float>(r), y, out.width, op.activation); break;
      case OpKind::softcap: k.softcap(x, y, out.width, op.cap); break;
      default: break;
    }
  }
}

void Model::gather(const NativeOp& op, const Step& step) {
  const SlotPlace &from = slots_[op.reads[0]], &to = slots_[op.out];
  for (int64_t r = 0; r < step.num_logits_rows; ++r) {
    std::memcpy(to.row<uint8_t>(r), from.row<uint8_t>(step.logits_rows[r]), to.row_bytes);
  }
}

// ---- matmuls ----

MatmulArgs Model::matmul_args(const NativeOp& op) const {
  MatmulArgs args;
  args.weight = matrices_[op.weight];
  args.x = slots_[op.reads[0]].bytes;
  args.x_stride = slots_[op.reads[0]].row_bytes;
  args.activations = activations_of(args.x_stride, args.weight.type, args.weight.inputs);
  args.bias = op.vector;
  args.out = slots_[op.out].row<float>(0);
  args.out_stride = slots_[op.out].row_bytes;
  return args;
}

// Items are pieces of (rows × tiles), all rows of a block of rows before the next block, so that a thread's
// activations stay in its cache while the weights stream by. Sizes depend on nothing that changes an element's bits.
void Model::run_matmuls(const Region& region, const Step& step) {
  constexpr int64_t kTileStep = 4;   // whole micro-tiles of every kernel
  constexpr int64_t kRowStep = 12;
  struct Job {
    MatmulArgs args;
    int64_t rows, rows_per_item, tiles, tiles_per_item, row_blocks, first_item;
  };
  std::vector<Job> jobs;
  int64_t items = 0, most_rows = 0;
  for (int i : region.ops) {
    Job job;
    job.args = matmul_args(ops_[i]);
    job.rows = rows_of(slots_[ops_[i].out], step);
    job.tiles = num_tiles(job.args.weight.outputs);
    const int64_t cached = std::max<int64_t>(kRowStep, kRowBlockBytes / static_cast<int64_t>(job.args.x_stride));
    const int64_t even_share = ceil_div(job.rows, ceil_div(job.rows, cached));
    job.rows_per_item = ceil_div(even_share, kRowStep) * kRowStep;
    job.row_blocks = ceil_div(job.rows, job.rows_per_item);
    const int64_t share = ceil_div(job.tiles, pool_.threads() * kItemsPerThread);
    job.tiles_per_item = pool_.threads() == 1 ? job.tiles : ceil_div(share, kTileStep) * kTileStep;
    job.first_item = items;
    items += job.row_blocks * ceil_div(job.tiles, job.tiles_per_item);
    most_rows = std::max(most_rows, job.rows);
    jobs.push_back(job);
  }
  // Few rows wait for memory: then each thread reads one long stream of weights, and helps the others at its end.
  const bool streams = most_rows <= kStreamRows;
  if (streams) shares_.deal(items);
  pool_.run(items, [&](int64_t claimed, int thread) {
    const int64_t item = streams ? shares_.claim(thread) : claimed;
    size_t j = jobs.size() - 1;
    while (jobs[j].first_item > item) --j;
    const Job& job = jobs[j];
    const int64_t chunks = ceil_div(job.tiles, job.tiles_per_item);
    const int64_t tile = (item - job.first_item) % chunks * job.tiles_per_item;
    const int64_t row = (item - job.first_item) / chunks * job.rows_per_item;
    kernels_->matmul(job.args, tile, std::min(job.tiles, tile + job.tiles_per_item), row,
                     std::min(job.rows, row + job.rows_per_item));
  });
}

// ---- attention ----

AttentionArgs Model::attention_args(const NativeOp& op, const Step& step) const {
  const KvLayer& layer = kv_layers_[op.layer];
  AttentionArgs args;
  args.q = slots_[op.reads[0]].row<const float>(0);
  args.k = slots_[op.reads[1]].row<const float>(0);
  args.v = slots_[op.reads[2]].row<const float>(0);
  args.out = op.out < 0 ? nullptr : slots_[op.out].row<float>(0);
  args.kv = layer.bytes;
  args.block_bytes = layer.block_bytes;
  args.kv_type = kv_type_;
  args.num_q_heads = op.num_q_heads;
  args.num_kv_heads = layer.num_kv_heads;
  args.head_dim = layer.head_dim;
  args.scale = op.scale;
  args.softcap = op.cap;
  args.window = op.window;
  args.positions = step.positions;
  args.slot_mapping = step.slot_mapping;
  args.query_starts = step.query_starts;
  args.context_lens = step.context_lens;
  args.block_tables = step.block_tables;
  args.max_blocks = static_cast<int>(step.max_blocks);
  args.num_tokens = static_cast<int>(step.num_tokens);
  args.num_requests = static_cast<int>(step.num_requests);
  return args;
}

void Model::run_attention(const NativeOp& op, const Step& step) {
  AttentionArgs args = attention_args(op, step);
  uint8_t* scratch = arena_.bytes() + arena_.size() - sizes_.scratch * static_cast<size_t>(pool_.threads());
  args.shared = scratch - sizes_.shared;
  args.shared_bytes = sizes_.shared;
  pool_.run(kernels_->attention_items(args), [&](int64_t item, int thread) {
    kernels_->attention(args, item, scratch + static_cast<size_t>(thread) * sizes_.scratch);
  });
}

}  // namespace kvw
