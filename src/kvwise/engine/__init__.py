"""The loop that serves requests: engine, executors, sampler, stop conditions, and the Python API over them."""
