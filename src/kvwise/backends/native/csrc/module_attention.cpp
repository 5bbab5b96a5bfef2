// One attention op by instruction set: for tests and benchmarks.
#include <nanobind/stl/string.h>

#include <cstring>

#include "isa.h"
#include "memory.h"
#include "module.h"
#include "pool.h"

namespace kvw {
namespace {

using FloatsOut = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using BytesOut = nb::ndarray<uint8_t, nb::c_contig, nb::device::cpu>;

// A layer's blocks and its shape; keeps the threads and the memory that attention works in.
class AttentionLayer {
 public:
  AttentionLayer(std::string isa, const std::string& kv_type, int num_q_heads, int num_kv_heads, int head_dim,
                 int num_blocks, int max_context, int threads)
      : kernels_(kernels_named(isa)), pool_(threads) {
    args_.kv_type = kv_type_named(kv_type);
    args_.num_q_heads = num_q_heads;
    args_.num_kv_heads = num_kv_heads;
    args_.head_dim = head_dim;
    args_.block_bytes = static_cast<size_t>(num_kv_heads) * kv_head_bytes(args_.kv_type, head_dim);
    kv_ = Mapping(args_.block_bytes * num_blocks, Pages::huge, "KV pool");
    args_.kv = kv_.bytes();
    scratch_bytes_ = kernels_.attention_scratch_bytes(num_q_heads, num_kv_heads, head_dim);
    scratch_ = Mapping(scratch_bytes_ * threads, Pages::small, "scratch");
    if (max_context > 0) {
      args_.shared_bytes = kernels_.attention_shared_bytes(num_q_heads, num_kv_heads, head_dim, max_context);
      shared_ = Mapping(args_.shared_bytes, Pages::small, "scratch");
      args_.shared = shared_.bytes();
    }
  }

  nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>> blocks() {
    const size_t count = kv_.size() / args_.block_bytes;
    return {kv_.bytes(), {count, args_.block_bytes}, nb::handle()};
  }

  // Store k and v, then attend: one step as a StepBatch describes it. Returns how many work items it took.
  int64_t run(const FloatsIn& q, const FloatsIn& k, const FloatsIn& v, const FloatsOut& out, float scale,
              float softcap, int window, const IntsIn& slot_mapping, const IntsIn& query_starts,
              const IntsIn& context_lens, const IntsIn& block_tables) {
    AttentionArgs args = args_;
    args.q = q.data();
    args.k = k.data();
    args.v = v.data();
    args.out = out.data();
    args.scale = scale;
    args.softcap = softcap;
    args.window = window;
    args.slot_mapping = slot_mapping.data();
    args.query_starts = query_starts.data();
    args.context_lens = context_lens.data();
    args.block_tables = block_tables.data();
    args.max_blocks = static_cast<int>(block_tables.shape(1));
    args.num_tokens = static_cast<int>(slot_mapping.size());
    args.num_requests = static_cast<int>(context_lens.size());
    nb::gil_scoped_release release;
    pool_.run(args.num_tokens, [&](int64_t token, int) { kernels_.kv_store(args, token, token + 1); });
    const int64_t items = kernels_.attention_items(args);
    pool_.run(items, [&](int64_t item, int thread) {
      kernels_.attention(args, item, scratch_.bytes() + static_cast<size_t>(thread) * scratch_bytes_);
    });
    return items;
  }

 private:
  const KernelTable& kernels_;
  ThreadPool pool_;
  AttentionArgs args_;
  Mapping kv_, scratch_, shared_;
  size_t scratch_bytes_ = 0;
};

}  // namespace

void bind_attention(nb::module_& kernels) {
  using namespace nb::literals;
  nb::class_<AttentionLayer>(kernels, "AttentionLayer")
      .def(nb::init<std::string, const std::string&, int, int, int, int, int, int>(), "isa"_a, "kv_type"_a,
           "num_q_heads"_a, "num_kv_heads"_a, "head_dim"_a, "num_blocks"_a, "max_context"_a, "threads"_a = 1)
      .def("blocks", &AttentionLayer::blocks, nb::rv_policy::reference_internal,
           "[num_blocks, block_bytes] uint8: the pool itself.")
      .def("run", &AttentionLayer::run, "q"_a, "k"_a, "v"_a, "out"_a, "scale"_a, "softcap"_a, "window"_a,
           "slot_mapping"_a, "query_starts"_a, "context_lens"_a, "block_tables"_a);
}

}  // namespace kvw
