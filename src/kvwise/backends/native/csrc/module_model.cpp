// Model as Python sees it: built op by op, then one call per step with the interpreter's lock released.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <tuple>
#include <utility>

#include "model.h"
#include "module.h"

namespace kvw {
namespace {

const int32_t* ints(const IntsIn& array, size_t size, const char* name) {
  if (array.size() != size) {
    throw NativeError(std::string(name) + " has " + std::to_string(array.size()) + " entries, expected " +
                      std::to_string(size));
  }
  return array.data();
}

// Logits [R, vocab] over the model's own memory, which the array keeps mapped.
nb::ndarray<nb::numpy, float> logits_view(const Model& model, int64_t rows) {
  auto* keep = new std::shared_ptr<Mapping>(model.logits());
  nb::capsule owner(keep, [](void* p) noexcept { delete static_cast<std::shared_ptr<Mapping>*>(p); });
  const SlotPlace& place = model.output();
  const size_t shape[2] = {static_cast<size_t>(rows), static_cast<size_t>(place.width)};
  return {place.row<float>(0), 2, shape, owner};
}

nb::ndarray<nb::numpy, float> run(Model& model, const IntsIn& token_ids, const IntsIn& positions,
                                        const IntsIn& slot_mapping, const IntsIn& query_starts,
                                        const IntsIn& context_lens, const IntsIn& block_tables,
                                        const IntsIn& logits_rows, const IntsIn& block_copies) {
  Step step;
  const size_t tokens = token_ids.size(), requests = context_lens.size();
  step.num_tokens = static_cast<int64_t>(tokens);
  step.num_requests = static_cast<int64_t>(requests);
  step.num_logits_rows = static_cast<int64_t>(logits_rows.size());
  step.num_copies = static_cast<int64_t>(block_copies.size() / 2);
  step.max_blocks = block_tables.ndim() == 2 ? static_cast<int64_t>(block_tables.shape(1)) : 0;
  step.token_ids = token_ids.data();
  step.positions = ints(positions, tokens, "positions");
  step.slot_mapping = ints(slot_mapping, tokens, "slot_mapping");
  step.query_starts = ints(query_starts, requests + 1, "query_starts");
  step.context_lens = context_lens.data();
  step.block_tables = ints(block_tables, requests * static_cast<size_t>(step.max_blocks), "block_tables");
  step.logits_rows = logits_rows.data();
  step.block_copies = block_copies.data();
  {
    nb::gil_scoped_release release;
    model.run(step);
  }
  return logits_view(model, step.num_logits_rows);
}

int write_weights(const Model& model, int file, int64_t offset) {
  nb::gil_scoped_release release;
  const uint8_t* bytes = model.weights().bytes();
  for (size_t left = model.weights().size(); left > 0;) {
    const ssize_t written = pwrite(file, bytes, std::min(left, size_t{1} << 26), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes += written;
    offset += written;
    left -= static_cast<size_t>(written);
  }
  return 0;
}

// None; or which weight could not be read, and why. Signals are looked at in between: an interrupt ends a long load.
std::optional<std::pair<int, std::string>> finish_loading(Model& model, const nb::object& progress) {
  auto tick = [&](int64_t done) {
    nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress.is_none()) progress(done);
  };
  nb::gil_scoped_release release;
  try {
    model.finish_loading(tick);
  } catch (const ReadError& error) {
    return std::pair{error.weight, std::string(error.what())};
  }
  return std::nullopt;
}

NativeOp operation(OpKind kind, int out, std::vector<int> reads) {
  NativeOp op;
  op.kind = kind;
  op.out = out;
  op.reads = std::move(reads);
  return op;
}

void add_attention(Model& model, int out, int q, int k, int v, int layer, int num_q_heads, int head_dim, float scale,
                   float softcap, int window) {
  NativeOp op = operation(OpKind::kv_store, -1, {q, k, v});
  op.layer = layer;
  op.num_q_heads = num_q_heads;
  op.head_dim = head_dim;
  op.scale = scale;
  op.cap = softcap;
  op.window = window;
  model.add_op(op);
  op.kind = OpKind::attend;
  op.out = out;
  model.add_op(op);
}

nb::tuple range_of(const Mapping& mapping) {
  return nb::make_tuple(reinterpret_cast<uintptr_t>(mapping.bytes()), mapping.size());
}

void bind_ops(nb::class_<Model>& model) {
  using namespace nb::literals;
  model
      .def("embed",
           [](Model& m, int out, int table, float scale) {
             NativeOp op = operation(OpKind::embed, out, {});
             op.weight = table;
             op.scale = scale;
             m.add_op(op);
           }, "out"_a, "table"_a, "scale"_a)
      .def("rms_norm",
           [](Model& m, int out, int x, int weight, float eps, float weight_offset, int64_t group) {
             NativeOp op = operation(OpKind::rms_norm, out, {x});
             op.vector = m.vector(weight);
             op.eps = eps;
             op.weight_offset = weight_offset;
             op.group = group;
             m.add_op(op);
           }, "out"_a, "x"_a, "weight"_a, "eps"_a, "weight_offset"_a, "group"_a)
      .def("quantize",
           [](Model& m, int out, int x, int group, bool twice) {
             NativeOp op = operation(OpKind::quantize, out, {x});
             op.group = group;
             op.twice = twice;
             m.add_op(op);
           }, "out"_a, "x"_a, "group"_a, "twice"_a)
      .def("narrow", [](Model& m, int out, int x) { m.add_op(operation(OpKind::narrow, out, {x})); }, "out"_a, "x"_a)
      .def("matmul",
           [](Model& m, int out, int x, int weight, int bias) {
             NativeOp op = operation(OpKind::matmul, out, {x});
             op.weight = weight;
             op.vector = m.vector(bias);
             m.add_op(op);
           }, "out"_a, "x"_a, "weight"_a, "bias"_a)
      .def("rope",
           [](Model& m, int out, int x, int rope, int head_dim) {
             NativeOp op = operation(OpKind::rope, out, {x});
             op.rope = rope;
             op.head_dim = head_dim;
             m.add_op(op);
           }, "out"_a, "x"_a, "rope"_a, "head_dim"_a)
      .def("attention", &add_attention, "out"_a, "q"_a, "k"_a, "v"_a, "layer"_a, "num_q_heads"_a, "head_dim"_a,
           "scale"_a, "softcap"_a, "window"_a)
      .def("add", [](Model& m, int out, int x, int y) { m.add_op(operation(OpKind::add, out, {x, y})); }, "out"_a,
           "x"_a, "y"_a)
      .def("glu",
           [](Model& m, int out, int gate, int up, const std::string& activation) {
             NativeOp op = operation(OpKind::glu, out, {gate, up});
             op.activation = activation_named(activation);
             m.add_op(op);
           }, "out"_a, "gate"_a, "up"_a, "activation"_a)
      .def("gather_rows", [](Model& m, int out, int x) { m.add_op(operation(OpKind::gather_rows, out, {x})); },
           "out"_a, "x"_a)
      .def("softcap",
           [](Model& m, int out, int x, float cap) {
             NativeOp op = operation(OpKind::softcap, out, {x});
             op.cap = cap;
             m.add_op(op);
           }, "out"_a, "x"_a, "cap"_a);
}

}  // namespace

void bind_model(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<ModelLimits>(m, "ModelLimits")
      .def(nb::init<int64_t, int64_t, int64_t, int64_t, int64_t>(), nb::kw_only(), "max_tokens"_a, "max_logits_rows"_a,
           "max_requests"_a, "max_context"_a, "num_blocks"_a);
  nb::class_<ModelBytes>(m, "ModelBytes")
      .def(nb::init<size_t, size_t, size_t, size_t, size_t, size_t, size_t>(), nb::kw_only(), "weights"_a, "kv_pool"_a,
           "arena"_a, "shared"_a, "scratch"_a, "logits"_a, "tables"_a);
  nb::class_<Model> model(m, "Model", "A program with its weights, KV pool and arena; one step at a time.");
  model
      .def("__init__",
           [](Model* self, const std::string& isa, int threads, const std::string& kv_type, const ModelLimits& limits,
              const ModelBytes& nbytes) { new (self) Model(isa, threads, limits, nbytes, kv_type_named(kv_type)); },
           nb::kw_only(), "isa"_a, "threads"_a, "kv_type"_a, "limits"_a, "nbytes"_a)
      .def("add_slot", &Model::add_slot, nb::kw_only(), "in_logits"_a, "offset"_a, "row_bytes"_a, "width"_a,
           "logits_rows"_a)
      .def("add_matrix",
           [](Model& self, const std::string& type, int64_t outputs, int64_t inputs) {
             return self.add_matrix(weight_type_named(type), outputs, inputs);
           }, "type"_a, "outputs"_a, "inputs"_a)
      .def("add_vector", &Model::add_vector, "n"_a)
      .def("read_weight",
           [](Model& self, int number, const std::string& type, int file, int64_t offset, int64_t interleaved_heads) {
             self.read_weight(number, {weight_type_named(type), file, offset, interleaved_heads});
           }, "number"_a, "type"_a, "file"_a, "offset"_a, "interleaved_heads"_a)
      .def("copy_weight",
           [](Model& self, int number, int file, int64_t offset, uint64_t checksum) {
             self.copy_weight(number, {file, offset, checksum});
           }, "number"_a, "file"_a, "offset"_a, "checksum"_a)
      .def("held_ranges",
           [](Model& self) {
             std::vector<std::tuple<size_t, size_t, uint64_t>> out;
             nb::gil_scoped_release release;
             for (const auto& range : self.held_ranges()) out.emplace_back(range.offset, range.nbytes, range.checksum);
             return out;
           }, "Of each weight, by number: offset in the buffer of weights, bytes, checksum.")
      .def("write_weights", &write_weights, "file"_a, "offset"_a,
           "The buffer of weights, into an open file. 0, or the system's error number.")
      .def_prop_ro("stored_bytes", &Model::stored_bytes, "Of all weights, in their files.")
      .def("start_loading", &Model::start_loading)
      .def("cancel_loading", &Model::cancel_loading, nb::call_guard<nb::gil_scoped_release>())
      .def("finish_loading", &finish_loading, "progress"_a.none(),
           "Waits for the weights; progress(bytes done) is called now and then. What could not be read, and why.")
      .def("add_rope", &Model::add_rope, "half"_a)
      .def("rope_table",
           [](Model& self, int rope) {
             const RopeTable& table = self.rope(rope);
             const size_t shape[3] = {2, static_cast<size_t>(self.limits().max_context),
                                      static_cast<size_t>(table.half)};
             return nb::ndarray<nb::numpy, float>(const_cast<float*>(table.cos), 3, shape, nb::find(self));
           }, "rope"_a, "cos, then sin: [2, max_context, half], zero until they are filled in.")
      .def("add_kv_layer", &Model::add_kv_layer, "num_kv_heads"_a, "head_dim"_a)
      .def("finish", &Model::finish, "output"_a)
      .def("run", &run, "token_ids"_a, "positions"_a, "slot_mapping"_a, "query_starts"_a, "context_lens"_a,
           "block_tables"_a, "logits_rows"_a, "block_copies"_a)
      .def("start_profile", &Model::start_profile)
      .def("profile",
           [](const Model& self) {
             const Model::Profile& p = self.profile();
             nb::dict seconds;
             seconds["rows"] = p.rows;
             seconds["matmul"] = p.matmul;
             seconds["attention"] = p.attend;
             seconds["gather"] = p.gather;
             return seconds;
           }, "Seconds by kind of op since start_profile.")
      .def_prop_ro("regions", &Model::regions, "Kind and number of ops of each pass over the pool of threads.")
      .def_prop_ro("threads", &Model::threads)
      .def_prop_ro("isa", [](const Model& self) { return std::string(self.kernels().isa); })
      .def("buffers", [](const Model& self) {
        nb::dict ranges;
        ranges["weights"] = range_of(self.weights());
        ranges["kv_pool"] = range_of(self.kv_pool());
        ranges["arena"] = range_of(self.arena());
        ranges["logits"] = range_of(*self.logits());
        ranges["tables"] = range_of(self.tables());
        return ranges;
      });
  bind_ops(model);
}

}  // namespace kvw
