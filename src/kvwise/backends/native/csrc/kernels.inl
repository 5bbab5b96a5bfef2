// All kernels of one instruction set, gathered in its table. Included once by each kernels_<isa>.cpp.
#include "attention.inl"
#include "limits.inl"
#include "matmul.inl"
#include "rowops.inl"

#define KVW_JOIN(a, b) a##b
#define KVW_TABLE_OF(isa) KVW_JOIN(kernels_, isa)
#define KVW_TEXT(x) #x
#define KVW_NAME_OF(isa) KVW_TEXT(isa)

namespace kvw {

const KernelTable& KVW_TABLE_OF(KVW_ISA)() {
  namespace isa = KVW_ISA;
  static constexpr KernelTable kTable = {
      .isa = KVW_NAME_OF(KVW_ISA),
      .matmul = isa::matmul,
      .embed_row = isa::embed_row,
      .rms_norm = isa::rms_norm,
      .quantize = isa::quantize,
      .narrow = isa::narrow,
      .rope = isa::rope,
      .add = isa::add,
      .glu = isa::glu,
      .softcap = isa::softcap,
      .kv_store = isa::kv_store,
      .attention_items = isa::attention_items,
      .attention = isa::attention,
      .attention_scratch_bytes = isa::attention_scratch_bytes,
      .attention_shared_bytes = isa::attention_shared_bytes,
      .read_bytes = isa::read_bytes,
      .dot_rounds = isa::dot_rounds,
      .fma_rounds = isa::fma_rounds,
  };
  return kTable;
}

}  // namespace kvw
