"""The native backend: C++ kernels behind the protocol of kvwise.backends.protocol."""
