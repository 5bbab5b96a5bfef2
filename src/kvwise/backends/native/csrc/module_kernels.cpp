// Single kernels, by instruction set: for tests and benchmarks. Every function takes `isa` first.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <vector>

#include "isa.h"
#include "layout.h"
#include "memory.h"
#include "module.h"
#include "pool.h"
#include "row_quantizers.h"

namespace kvw {
namespace {

using FloatsOut = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using BytesOut = nb::ndarray<uint8_t, nb::c_contig, nb::device::cpu>;

// A repacked matrix on its own, and the threads to multiply it with.
class PackedMatrix {
 public:
  PackedMatrix(const std::string& type, int64_t outputs, int64_t inputs, const BytesIn& rows, int threads)
      : pool_(threads) {
    weight_.type = weight_type_named(type);
    weight_.outputs = outputs;
    weight_.inputs = inputs;
    weight_.tile_bytes = static_cast<size_t>(tile_bytes(weight_.type, inputs));
    if (outputs < 1 || inputs < 1) throw NativeError("a matrix needs at least one output and one input");
    if (rows.size() != static_cast<size_t>(outputs * stored_row_bytes(weight_.type, inputs))) {
      throw NativeError("the matrix's bytes don't fit its shape");
    }
    memory_ = Mapping(weight_.tile_bytes * num_tiles(outputs), Pages::huge, "matrix");
    weight_.bytes = memory_.bytes();
    const int64_t row_bytes = stored_row_bytes(weight_.type, inputs);
    const std::vector<uint8_t> zeros(row_bytes);
    for (int64_t t = 0; t < num_tiles(outputs); ++t) {
      repack_tile(weight_.type, inputs, rows_of_tile(rows.data(), outputs, row_bytes, t, zeros.data()),
                  memory_.bytes() + t * weight_.tile_bytes);
    }
  }

  // out[R, outputs] = x · weightᵀ + bias; x [R, bytes of a row]: q8, q8x2 or float32 rows, told apart by their size.
  // `tiles` and `rows` cut the work into pieces of that many.
  void matmul(const std::string& isa, const BytesIn& x, const std::optional<FloatsIn>& bias, const FloatsOut& out,
              int64_t tiles, int64_t rows) {
    const KernelTable& kernels = kernels_named(isa);
    const size_t num_rows = out.size() / weight_.outputs;
    const size_t row_bytes = x.size() / (num_rows ? num_rows : 1);
    const Activations kind = activations_of(row_bytes, weight_.type, weight_.inputs);
    if (kind == Activations::bf16 && !pairs_are_fast(isa)) throw NativeError("pairs of bf16 are not multiplied here");
    if (x.size() != num_rows * row_bytes_of(kind, weight_.inputs) || out.size() != num_rows * weight_.outputs) {
      throw NativeError("x or out doesn't fit the matrix");
    }
    MatmulArgs args;
    args.weight = weight_;
    args.x = x.data();
    args.x_stride = row_bytes;
    args.activations = kind;
    args.bias = bias ? bias->data() : nullptr;
    args.out = out.data();
    args.out_stride = sizeof(float) * weight_.outputs;
    const int64_t all_rows = num_rows, all_tiles = num_tiles(weight_.outputs);
    const int64_t tile_pieces = (all_tiles + tiles - 1) / tiles, row_pieces = (all_rows + rows - 1) / rows;
    nb::gil_scoped_release release;
    pool_.run(tile_pieces * row_pieces, [&](int64_t item, int) {
      const int64_t tile = item % tile_pieces * tiles, row = item / tile_pieces * rows;
      kernels.matmul(args, tile, tile + tiles < all_tiles ? tile + tiles : all_tiles, row,
                     row + rows < all_rows ? row + rows : all_rows);
    });
  }

  void row(const std::string& isa, int64_t row, float scale, const FloatsOut& out) const {
    if (row < 0 || row >= weight_.outputs || out.size() != static_cast<size_t>(weight_.inputs)) {
      throw NativeError("no such row");
    }
    kernels_named(isa).embed_row(weight_, row, scale, out.data());
  }

  size_t nbytes() const { return memory_.size(); }

 private:
  ThreadPool pool_;
  WeightMatrix weight_;
  Mapping memory_;
};

int64_t width_of(const FloatsIn& x) { return x.ndim() == 2 ? x.shape(1) : x.size(); }
int64_t rows_of(const FloatsIn& x) { return x.ndim() == 2 ? x.shape(0) : 1; }

void bind_row_ops(nb::module_& m) {
  using namespace nb::literals;
  m.def("rms_norm", [](const std::string& isa, const FloatsIn& x, const FloatsIn& weight, const FloatsOut& out,
                       float eps, float weight_offset) {
    const int64_t width = width_of(x);
    for (int64_t r = 0; r < rows_of(x); ++r) {
      kernels_named(isa).rms_norm(x.data() + r * width, weight.data(), out.data() + r * width, width, weight.size(),
                                  eps, weight_offset);
    }
  });
  m.def(
      "quantize",
      [](const std::string& isa, const FloatsIn& x, const BytesOut& out, int group, bool twice) {
        const int64_t width = width_of(x);
        const size_t row_bytes = row_bytes_of(twice ? Activations::q8x2 : Activations::q8, width);
        if (out.size() != rows_of(x) * row_bytes) throw NativeError("out doesn't fit x");
        if (group != kQ8Block && group != kMaxQ8Group) throw NativeError("a scale is for 32 or 128 elements");
        for (int64_t r = 0; r < rows_of(x); ++r) {
          kernels_named(isa).quantize(x.data() + r * width, out.data() + r * row_bytes, width, group, twice);
        }
      },
      "isa"_a, "x"_a, "out"_a, "group"_a = kQ8Block, "twice"_a = false);
  m.def("narrow", [](const std::string& isa, const FloatsIn& x, const BytesOut& out) {
    const int64_t width = width_of(x);
    const size_t row_bytes = row_bytes_of(Activations::bf16, width);
    if (out.size() != rows_of(x) * row_bytes) throw NativeError("out doesn't fit x");
    for (int64_t r = 0; r < rows_of(x); ++r) {
      kernels_named(isa).narrow(x.data() + r * width, out.data() + r * row_bytes, width);
    }
  });
  m.def("rope", [](const std::string& isa, const FloatsIn& x, const FloatsIn& cos, const FloatsIn& sin,
                   const FloatsOut& out, int64_t head_dim) {
    kernels_named(isa).rope(x.data(), cos.data(), sin.data(), out.data(), x.size() / head_dim, head_dim,
                            2 * cos.size());
  });
  m.def("add", [](const std::string& isa, const FloatsIn& x, const FloatsIn& y, const FloatsOut& out) {
    kernels_named(isa).add(x.data(), y.data(), out.data(), x.size());
  });
  m.def("glu", [](const std::string& isa, const FloatsIn& gate, const FloatsIn& up, const FloatsOut& out,
                  const std::string& activation) {
    kernels_named(isa).glu(gate.data(), up.data(), out.data(), gate.size(), activation_named(activation));
  });
  m.def("softcap", [](const std::string& isa, const FloatsIn& x, const FloatsOut& out, float cap) {
    kernels_named(isa).softcap(x.data(), out.data(), x.size(), cap);
  });
}

bool round_rows(const std::string& type, const FloatsIn& values, const BytesOut& out) {
  const WeightType kind = weight_type_named(type);
  const RowQuantizer quantize = row_quantizer(kind);
  if (quantize == nullptr) return false;
  if (values.ndim() != 2) throw NativeError("values must be rows");
  const auto rows = static_cast<int64_t>(values.shape(0)), n = static_cast<int64_t>(values.shape(1));
  const int64_t row_bytes = stored_row_bytes(kind, n);
  if (n % block_shape(kind).elements != 0 || out.size() != static_cast<size_t>(rows * row_bytes)) {
    throw NativeError("the rows don't fit their bytes");
  }
  for (int64_t r = 0; r < rows; ++r) quantize(values.data() + r * n, n, out.data() + r * row_bytes);
  return true;
}

}  // namespace

void bind_kernels(nb::module_& m) {
  using namespace nb::literals;
  nb::module_ kernels = m.def_submodule("kernels", "Single kernels, for tests and benchmarks; `isa` comes first.");
  nb::class_<PackedMatrix>(kernels, "PackedMatrix")
      .def(nb::init<const std::string&, int64_t, int64_t, const BytesIn&, int>(), "type"_a, "outputs"_a, "inputs"_a,
           "rows"_a, "threads"_a = 1)
      .def("matmul", &PackedMatrix::matmul, "isa"_a, "x"_a, "bias"_a.none(), "out"_a, "tiles"_a = 4, "rows"_a = 192)
      .def("row", &PackedMatrix::row, "isa"_a, "row"_a, "scale"_a, "out"_a)
      .def_prop_ro("nbytes", &PackedMatrix::nbytes);
  kernels.def("round_rows", &round_rows, "type"_a, "values"_a, "out"_a,
              "Float rows [R, n] as rows of `type`, as a conversion while loading makes them; false where there is none.");
  bind_row_ops(kernels);
  bind_attention(kernels);
}

}  // namespace kvw
