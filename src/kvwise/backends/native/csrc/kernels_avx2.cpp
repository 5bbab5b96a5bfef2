#define KVW_ISA_AVX2
#include "kernels.inl"
