#define KVW_ISA_SCALAR
#include "kernels.inl"
