// The kernels of one instruction set as a table of functions: what the executor calls, and all that it knows.
//
// Each kernels_<isa>.cpp is one translation unit compiled with that instruction set's flags. It defines one of
// KVW_ISA_SCALAR, KVW_ISA_AVX2, KVW_ISA_AVX512, KVW_ISA_NEON, then includes kernels.inl, which puts every kernel into
// namespace kvw::KVW_ISA (vec.h) and defines the table's function below.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvw {

constexpr int kBlockTokens = 16;  // tokens of one KV block: one vector of float32 scores
constexpr int kLanes = 16;        // output rows that are interleaved in every weight layout
constexpr int kQ8Block = 32;      // elements of a block of activations; one or four blocks share a scale
constexpr int kMaxQ8Group = 128;
constexpr int kMaxHeadDim = 512;  // of attention: its sums of integer products stay within 32 bits

enum class WeightType : int32_t { f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k,
                                i8, i4_64, i4_128 };
enum class KvType : int32_t { f32, f16, bf16, int8, int4 };
enum class Activation : int32_t { silu, gelu_tanh, gelu_erf, relu };

// One quantized activation row of `width` elements, nb = ceil(width / 32) blocks, 40 · nb bytes:
//   int8  q[32 · nb] | float32 scale[nb] | int16 sum[nb][2]   sum[b][h] = Σ q of half h of block b; q is 0 past the
//                                                             width. Weights whose scales cover 16 inputs want halves.
// Where four blocks share a scale, their sums are instead int32: of all four, of the first two, of the last two, 0.
static inline constexpr size_t q8_row_bytes(size_t width) { return 40 * ((width + kQ8Block - 1) / kQ8Block); }

// What a row of activations is. q8x2: two q8 rows one after the other, the second of what rounding the first left.
// bf16: an even number of them, for bf16 weights where the machine multiplies pairs faster than float32 (isa.h).
enum class Activations : int32_t { f32, q8, q8x2, bf16 };

// A repacked matrix [outputs, inputs]; layout.h draws the layouts. `tiles` tiles of 16 output rows, the last one
// padded with zeros.
struct WeightMatrix {
  const uint8_t* bytes = nullptr;
  size_t tile_bytes = 0;  // one tile of 16 output rows over all inputs
  int64_t outputs = 0;
  int64_t inputs = 0;
  WeightType type = WeightType::f32;
};

// out[r, o] = x[r] · weight[o] (+ bias[o]); rows of x and out are x_stride and out_stride bytes apart.
struct MatmulArgs {
  WeightMatrix weight;
  const uint8_t* x = nullptr;
  size_t x_stride = 0;
  Activations activations = Activations::f32;
  const float* bias = nullptr;  // [outputs], or null
  float* out = nullptr;
  size_t out_stride = 0;
};

// One KV head's part of a block of the pool; D = head_dim, P = D rounded up to 16:
//   f32, f16, bf16   K [D][16 tokens]                 V [16 tokens][D]
//   int8             K int8 [P / 2][16 tokens][2]     V int8 [8][P][2 tokens]
//   int4             K bytes [P / 4][16 tokens][2]    V bytes [8][P / 16][8][2 tokens]
//                    low nibble d = 4j + i, high 4j + 2 + i   low nibble d = 16j + i, high 16j + 8 + i   each q + 8
//   and both: float16 scales of K [16 tokens], of V [16 tokens], a cache line together
// What integers are taken of: backends/reference/kv_codec.py. The elements P - D of a token are zeros.
constexpr bool has_scales(KvType type) { return type == KvType::int8 || type == KvType::int4; }
constexpr size_t kv_half_bytes(KvType type, int head_dim) {  // K or V of one head in one block, without scales
  const size_t dim = static_cast<size_t>(head_dim), padded = (dim + 15) / 16 * 16;
  switch (type) {
    case KvType::f32: return kBlockTokens * 4 * dim;
    case KvType::f16: return kBlockTokens * 2 * dim;
    case KvType::bf16: return kBlockTokens * 2 * dim;
    case KvType::int8: return kBlockTokens * padded;
    case KvType::int4: return kBlockTokens * padded / 2;
  }
  return 0;
}
constexpr size_t kv_head_bytes(KvType type, int head_dim) {
  return 2 * kv_half_bytes(type, head_dim) + (has_scales(type) ? 2 * 2 * kBlockTokens : 0);
}

// One attention op of one step. T tokens of B requests; see StepBatch for the arrays.
//
// The pool of one layer: block b starts at kv + b · block_bytes; kv_head_bytes for each KV head.
struct AttentionArgs {
  const float* q = nullptr;  // [T, num_q_heads · head_dim]
  const float* k = nullptr;  // [T, num_kv_heads · head_dim], rotated
  const float* v = nullptr;  // [T, num_kv_heads · head_dim]
  float* out = nullptr;      // [T, num_q_heads · head_dim]
  uint8_t* kv = nullptr;
  size_t block_bytes = 0;
  KvType kv_type = KvType::f32;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float scale = 1.0f;
  float softcap = 0.0f;  // 0: none
  int window = 0;        // 0: none
  const int32_t* positions = nullptr;     // [T]
  const int32_t* slot_mapping = nullptr;  // [T]
  const int32_t* query_starts = nullptr;  // [B + 1]
  const int32_t* context_lens = nullptr;  // [B]
  const int32_t* block_tables = nullptr;  // [B, max_blocks]
  int max_blocks = 0;
  int num_tokens = 0;
  int num_requests = 0;
  uint8_t* shared = nullptr;  // attention_shared_bytes, 64-byte aligned, zeroed once at load
  size_t shared_bytes = 0;
};

struct KernelTable {
  const char* isa;

  // ---- matmul.inl. Tiles [tile_begin, tile_end) of 16 outputs, rows [row_begin, row_end): any split gives the same
  // bits. q8 and q8x2 rows are for the types that can_take_q8 (layout.h); float32 rows are for
  // all; bf16 rows only where pairs_are_fast (isa.h).
  void (*matmul)(const MatmulArgs& args, int64_t tile_begin, int64_t tile_end, int64_t row_begin, int64_t row_end);
  // One row of a repacked matrix as float32: the embedding lookup. out[inputs] = scale · row.
  void (*embed_row)(const WeightMatrix& table, int64_t row, float scale, float* out);

  // ---- rowops.inl. One row each, except where n is a plain count of elements. In-place calls are allowed.
  void (*rms_norm)(const float* x, const float* weight, float* out, int64_t width, int64_t group, float eps,
                   float weight_offset);
  // `group` elements share a scale: 32 or 128. twice: as q8x2.
  void (*quantize)(const float* x, uint8_t* q8_row, int64_t width, int group, bool twice);
  void (*narrow)(const float* x, uint8_t* bf16_row, int64_t width);
  // cos and sin: this position's rotary_dim / 2 values.
  void (*rope)(const float* x, const float* cos, const float* sin, float* out, int64_t num_heads, int64_t head_dim,
               int64_t rotary_dim);
  void (*add)(const float* x, const float* y, float* out, int64_t n);
  void (*glu)(const float* gate, const float* up, float* out, int64_t n, Activation activation);
  void (*softcap)(const float* x, float* out, int64_t n, float cap);

  // ---- attention.inl. First every token's K and V are stored (kv_store, any split of [0, T) over threads), then
  // work items [0, attention_items) run in any order on any thread, each writing its own part of out. scratch is one
  // thread's, attention_scratch_bytes, 64-byte aligned; args.shared is for all threads: what a long decode's spans,
  // computed as several items, meet in. Both are functions of shapes and limits only, never of the batch.
  void (*kv_store)(const AttentionArgs& args, int64_t token_begin, int64_t token_end);
  int64_t (*attention_items)(const AttentionArgs& args);
  void (*attention)(const AttentionArgs& args, int64_t item, uint8_t* scratch);
  size_t (*attention_scratch_bytes)(int num_q_heads, int num_kv_heads, int head_dim);
  size_t (*attention_shared_bytes)(int num_q_heads, int num_kv_heads, int head_dim, int64_t max_context);

  // ---- limits.inl, for benchmarks.
  int32_t (*read_bytes)(const uint8_t* p, int64_t n);
  int32_t (*dot_rounds)(int64_t rounds, const uint8_t* seed);
  int32_t (*fma_rounds)(int64_t rounds, const uint8_t* seed);
};

// Each returns its table; which of them exist is decided by the platform the module is built for.
const KernelTable& kernels_scalar();
const KernelTable& kernels_avx2();
const KernelTable& kernels_avx512();
const KernelTable& kernels_neon();

}  // namespace kvw
