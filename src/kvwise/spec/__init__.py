"""Frozen facts: what a model, a cache, a batch and a request are. Knows nothing that computes."""
