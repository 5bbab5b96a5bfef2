// Holds the kernels of every instruction set that this machine can run to the scalar ones, bit for bit, without
// Python: what a cross-compiled build can run under an emulator. That the scalar ones are right is for the tests
// against the reference backend to say.
//
//   kernel_selftest [ISA]      one line per kernel and instruction set; exits with 1 when a bit differs
//
// With ISA it fails when that one can't be run here. Lengths start at 0 or 1 and pass two vectors and two blocks;
// float pointers are off the vector's alignment.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "isa.h"
#include "layout.h"

namespace {

using namespace kvw;

// splitmix64: https://prng.di.unimi.it/splitmix64.c
class Random {
 public:
  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(bits() % static_cast<uint64_t>(n)); }
  // In (-2, 2), every eighth a few powers of two larger or smaller.
  float real() {
    const float x = static_cast<float>(static_cast<int64_t>(bits() >> 40) - (1 << 23)) * 0x1p-22f;
    static constexpr float kPowers[] = {0x1p-20f, 0x1p-6f, 0x1p5f, 0x1p9f};
    return below(8) == 0 ? x * kPowers[below(4)] : x;
  }

 private:
  uint64_t state_ = 1;
};

// n floats that start 4 bytes past a cache line, and count as different when what follows them was written to.
class Floats {
 public:
  explicit Floats(int64_t n) : n_(n), storage_(static_cast<size_t>(n) + 64, kUntouched) {}
  Floats(int64_t n, Random& random) : Floats(n) {
    for (int64_t i = 0; i < n; ++i) data()[i] = random.real();
  }
  float* data() {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    return storage_.data() + (64 - address % 64) % 64 / 4 + 1;
  }
  const float* data() const { return const_cast<Floats*>(this)->data(); }
  bool same_as(const Floats& other) const {
    return std::memcmp(data(), other.data(), 4 * static_cast<size_t>(n_ + 16)) == 0;
  }

 private:
  static constexpr float kUntouched = -12345.0f;
  int64_t n_;
  std::vector<float> storage_;
};

// Bytes on a cache line's start.
class Bytes {
 public:
  explicit Bytes(size_t n, uint8_t value = 0) : n_(n), storage_(n + 64, value) {}
  Bytes(const Bytes& other) : Bytes(other.n_) { std::memcpy(data(), other.data(), n_); }
  Bytes(Bytes&&) = default;
  Bytes& operator=(Bytes&&) = default;
  uint8_t* data() {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    return storage_.data() + (64 - address % 64) % 64;
  }
  const uint8_t* data() const { return const_cast<Bytes*>(this)->data(); }
  size_t size() const { return n_; }
  bool same_as(const Bytes& other) const { return std::memcmp(data(), other.data(), n_) == 0; }

 private:
  size_t n_;
  std::vector<uint8_t> storage_;
};

// Any stored weights whose 16-bit and 32-bit floats are finite wherever they stand: no exponent of all ones.
Bytes finite_bytes(size_t n, Random& random) {
  Bytes bytes(n);
  for (size_t i = 0; i < n; ++i) {
    auto byte = static_cast<uint8_t>(random.bits());
    if ((byte & 0x7c) == 0x7c) byte &= 0xbf;
    bytes.data()[i] = byte;
  }
  return bytes;
}

// Weights of `type` as a file stores them. Floats are drawn as such, so that sums of products stay finite.
Bytes stored_weights(WeightType type, int64_t rows, int64_t inputs, Random& random) {
  Bytes bytes = finite_bytes(static_cast<size_t>(rows * stored_row_bytes(type, inputs)), random);
  for (int64_t i = 0; i < rows * inputs; ++i) {
    const float value = random.real();
    if (type == WeightType::f32) std::memcpy(bytes.data() + 4 * i, &value, 4);
    if (type == WeightType::bf16) std::memcpy(bytes.data() + 2 * i, reinterpret_cast<const uint8_t*>(&value) + 2, 2);
  }
  for (int64_t row = 0; row < rows && row_header_bytes(type) != 0; ++row) {
    const float scale = random.real();
    std::memcpy(bytes.data() + row * stored_row_bytes(type, inputs), &scale, sizeof scale);
  }
  return bytes;
}

struct Verdict {
  int cases = 0, wrong = 0;
  void add(bool same) { ++cases, wrong += !same; }
};

struct Pair {
  const KernelTable& scalar;
  const KernelTable& other;
};

constexpr std::pair<WeightType, const char*> kWeightTypes[] = {
    {WeightType::f32, "f32"},   {WeightType::f16, "f16"},   {WeightType::bf16, "bf16"}, {WeightType::q8_0, "q8_0"},
    {WeightType::q4_0, "q4_0"}, {WeightType::q4_1, "q4_1"}, {WeightType::q5_0, "q5_0"}, {WeightType::q5_1, "q5_1"},
    {WeightType::q2_k, "q2_k"}, {WeightType::q3_k, "q3_k"}, {WeightType::q4_k, "q4_k"}, {WeightType::q5_k, "q5_k"},
    {WeightType::q6_k, "q6_k"}, {WeightType::i8, "i8"},     {WeightType::i4_64, "i4_64"}, {WeightType::i4_128, "i4_128"},
};

// Outputs that leave the last tile ragged, rows that pass every micro-tile, and embedding lookups from the same tiles.
Verdict check_weights(const Pair& pair, WeightType type, Random& random) {
  Verdict verdict;
  for (const int64_t blocks : {1, 2, 3, 17}) {
    const int64_t inputs = blocks * (block_shape(type).elements == 1 ? 19 : block_shape(type).elements);
    const int64_t outputs = 16 * 5 - 7;
    const Bytes stored = stored_weights(type, outputs, inputs, random);
    Bytes tiles(static_cast<size_t>(num_tiles(outputs) * tile_bytes(type, inputs)));
    WeightMatrix matrix{tiles.data(), static_cast<size_t>(tile_bytes(type, inputs)), outputs, inputs, type};
    const int64_t row_bytes = stored_row_bytes(type, inputs);
    const Bytes zeros(static_cast<size_t>(row_bytes));
    for (int64_t t = 0; t < num_tiles(outputs); ++t) {
      repack_tile(type, inputs, rows_of_tile(stored.data(), outputs, row_bytes, t, zeros.data()),
                  tiles.data() + static_cast<size_t>(t) * matrix.tile_bytes);
    }
    for (int64_t rows = 1; rows <= 20; ++rows) {
      const Floats x(rows * inputs, random), bias(outputs, random);
      for (const Activations kind : {Activations::f32, Activations::q8, Activations::q8x2}) {
        if (kind != Activations::f32 && !can_take_q8(type)) continue;
        const size_t stride = row_bytes_of(kind, inputs);
        Bytes rows_of_x(static_cast<size_t>(rows) * stride);
        for (int64_t r = 0; r < rows; ++r) {
          uint8_t* row = rows_of_x.data() + static_cast<size_t>(r) * stride;
          if (kind == Activations::f32) {
            std::memcpy(row, x.data() + r * inputs, stride);
          } else {
            pair.scalar.quantize(x.data() + r * inputs, row, inputs, is_own(type) ? kMaxQ8Group : kQ8Block,
                                 kind == Activations::q8x2);
          }
        }
        Floats out[2] = {Floats(rows * outputs), Floats(rows * outputs)};
        for (int side = 0; side < 2; ++side) {
          MatmulArgs args;
          args.weight = matrix;
          args.activations = kind;
          args.x = rows_of_x.data();
          args.x_stride = stride;
          args.bias = rows % 2 ? bias.data() : nullptr;
          args.out = out[side].data();
          args.out_stride = 4 * static_cast<size_t>(outputs);
          (side ? pair.other : pair.scalar).matmul(args, 0, num_tiles(outputs), 0, rows);
        }
        verdict.add(out[0].same_as(out[1]));
      }
    }
    for (int64_t row = 0; row < outputs; ++row) {
      Floats a(inputs), b(inputs);
      pair.scalar.embed_row(matrix, row, 1.5f, a.data());
      pair.other.embed_row(matrix, row, 1.5f, b.data());
      verdict.add(a.same_as(b));
    }
  }
  return verdict;
}

template <class Run>
void check_rows(Verdict& verdict, const Pair& pair, int64_t n, Run&& run) {
  Floats a(n), b(n);
  run(pair.scalar, a.data());
  run(pair.other, b.data());
  verdict.add(a.same_as(b));
}

Verdict check_row_kernels(const Pair& pair, Random& random) {
  Verdict verdict;
  for (int64_t n = 0; n <= 150; ++n) {
    const Floats x(n, random), y(n, random);
    check_rows(verdict, pair, n, [&](const KernelTable& k, float* out) { k.add(x.data(), y.data(), out, n); });
    check_rows(verdict, pair, n, [&](const KernelTable& k, float* out) { k.softcap(x.data(), out, n, 30.0f); });
    for (const Activation f : {Activation::silu, Activation::gelu_tanh, Activation::gelu_erf, Activation::relu}) {
      check_rows(verdict, pair, n, [&](const KernelTable& k, float* out) { k.glu(x.data(), y.data(), out, n, f); });
    }
    if (n == 0) continue;
    check_rows(verdict, pair, n, [&](const KernelTable& k, float* out) {
      k.rms_norm(x.data(), y.data(), out, n, n, 1e-5f, 1.0f);
    });
    for (const int group : {kQ8Block, kMaxQ8Group}) {
      Bytes a(row_bytes_of(Activations::q8x2, n), 1), b(a.size(), 2);
      pair.scalar.quantize(x.data(), a.data(), n, group, true);
      pair.other.quantize(x.data(), b.data(), n, group, true);
      verdict.add(a.same_as(b));
    }
  }
  for (int64_t head_dim = 2; head_dim <= 80; head_dim += 2) {
    const int64_t rotary_dim = head_dim % 4 ? head_dim : head_dim / 2;
    const Floats x(3 * head_dim, random), cos(rotary_dim / 2, random), sin(rotary_dim / 2, random);
    check_rows(verdict, pair, 3 * head_dim, [&](const KernelTable& k, float* out) {
      k.rope(x.data(), cos.data(), sin.data(), out, 3, head_dim, rotary_dim);
    });
  }
  return verdict;
}

struct AttentionCase {
  KvType type;
  int num_q_heads, num_kv_heads, head_dim, window;
  float softcap;
};

// A request in decode with several spans, one that prefills its last 21 tokens, one that begins: their blocks lie in
// the pool in reverse.
void run_attention(const KernelTable& kernels, const AttentionCase& c, bool shared, Floats& out, Bytes& pool,
                   uint64_t salt) {
  const std::vector<int32_t> context_lens = {1100, 61, 5}, query_starts = {0, 1, 22, 27};
  const int tokens = query_starts.back(), max_blocks = (1100 + kBlockTokens - 1) / kBlockTokens;
  std::vector<int32_t> tables(3 * static_cast<size_t>(max_blocks), -1), positions, slots;
  int next_block = 3 * max_blocks;
  for (size_t r = 0; r < 3; ++r) {
    for (int b = 0; b * kBlockTokens < context_lens[r]; ++b) tables[r * max_blocks + b] = --next_block;
    const int queries = query_starts[r + 1] - query_starts[r];
    for (int p = context_lens[r] - queries; p < context_lens[r]; ++p) {
      positions.push_back(p);
      slots.push_back(tables[r * max_blocks + p / kBlockTokens] * kBlockTokens + p % kBlockTokens);
    }
  }
  Random random;
  for (uint64_t i = 0; i < salt; ++i) random.bits();
  const Floats q(int64_t{tokens} * c.num_q_heads * c.head_dim, random);
  const Floats k(int64_t{tokens} * c.num_kv_heads * c.head_dim, random);
  const Floats v(int64_t{tokens} * c.num_kv_heads * c.head_dim, random);
  Bytes scratch(kernels.attention_scratch_bytes(c.num_q_heads, c.num_kv_heads, c.head_dim), 0x5a);
  Bytes meeting(kernels.attention_shared_bytes(c.num_q_heads, c.num_kv_heads, c.head_dim, 1100));
  AttentionArgs args;
  args.q = q.data(), args.k = k.data(), args.v = v.data(), args.out = out.data();
  args.kv = pool.data(), args.kv_type = c.type;
  args.block_bytes = pool.size() / static_cast<size_t>(3 * max_blocks);
  args.num_q_heads = c.num_q_heads, args.num_kv_heads = c.num_kv_heads, args.head_dim = c.head_dim;
  args.scale = 0.125f, args.softcap = c.softcap, args.window = c.window;
  args.positions = positions.data(), args.slot_mapping = slots.data(), args.query_starts = query_starts.data();
  args.context_lens = context_lens.data(), args.block_tables = tables.data(), args.max_blocks = max_blocks;
  args.num_tokens = tokens, args.num_requests = 3;
  if (shared) args.shared = meeting.data(), args.shared_bytes = meeting.size();
  kernels.kv_store(args, 0, tokens);
  const int64_t items = kernels.attention_items(args);
  for (int64_t item = items - 1; item >= 0; --item) kernels.attention(args, item, scratch.data());
}

Verdict check_attention(const Pair& pair, Random& random) {
  Verdict verdict;
  const AttentionCase cases[] = {
      {KvType::f32, 4, 2, 64, 0, 0.0f},   {KvType::f16, 9, 3, 64, 0, 0.0f},  {KvType::bf16, 3, 1, 128, 0, 0.0f},
      {KvType::f32, 4, 4, 20, 33, 50.0f}, {KvType::f16, 8, 2, 80, 700, 0.0f}, {KvType::bf16, 2, 2, 16, 16, 30.0f},
      {KvType::int8, 6, 2, 64, 0, 0.0f},  {KvType::int8, 3, 1, 100, 300, 50.0f},
      {KvType::int4, 9, 3, 64, 0, 0.0f},  {KvType::int4, 2, 2, 33, 40, 0.0f}, {KvType::int4, 8, 1, 128, 0, 0.0f},
  };
  for (const AttentionCase& c : cases) {
    const size_t pool_bytes = 3 * 69 * static_cast<size_t>(c.num_kv_heads) * kv_head_bytes(c.type, c.head_dim);
    Bytes before = finite_bytes(pool_bytes, random);  // as f16, scales included
    if (c.type == KvType::f32) before = stored_weights(WeightType::f32, 1, static_cast<int64_t>(pool_bytes / 4), random);
    if (c.type == KvType::bf16) before = stored_weights(WeightType::bf16, 1, static_cast<int64_t>(pool_bytes / 2), random);
    const int64_t outputs = 27 * c.num_q_heads * c.head_dim;
    const uint64_t salt = random.bits() % 1000;
    Floats expected(outputs);
    Bytes expected_pool = before;
    run_attention(pair.scalar, c, false, expected, expected_pool, salt);
    for (const bool shared : {false, true}) {
      Floats out(outputs);
      Bytes pool = before;
      run_attention(pair.other, c, shared, out, pool, salt);
      verdict.add(out.same_as(expected));
      verdict.add(pool.same_as(expected_pool));
    }
  }
  return verdict;
}

int report(const char* isa, const char* kernel, const Verdict& verdict) {
  std::printf("%-7s %-14s %5d cases, %d differ from scalar\n", isa, kernel, verdict.cases, verdict.wrong);
  return verdict.wrong;
}

int check_isa(const std::string& name) {
  const Pair pair{kernels_named("scalar"), kernels_named(name)};
  Random random;
  int wrong = 0;
  for (const auto& [type, type_name] : kWeightTypes) {
    wrong += report(name.c_str(), (std::string("matmul ") + type_name).c_str(), check_weights(pair, type, random));
  }
  wrong += report(name.c_str(), "row kernels", check_row_kernels(pair, random));
  wrong += report(name.c_str(), "attention", check_attention(pair, random));
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  int wrong = 0;
  if (argc > 1) {
    bool usable = false;
    for (const std::string& name : usable_isas()) usable |= name == argv[1];
    if (!usable) {
      std::printf("kernels for '%s' can't be run here\n", argv[1]);
      return 1;
    }
  }
  for (const std::string& name : usable_isas()) wrong += check_isa(name);
  std::printf("%s\n", wrong ? "FAILED" : "ok");
  return wrong ? 1 : 0;
}
