#define KVW_ISA_AVX512
#include "kernels.inl"
