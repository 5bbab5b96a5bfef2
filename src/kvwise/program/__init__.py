"""A model written once: the list of operations that every backend reads, its memory layout and its cost."""
