#define KVW_ISA_NEON
#include "kernels.inl"
