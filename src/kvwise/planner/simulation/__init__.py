"""Capacity under load: arrivals, lengths, and the real scheduler on a virtual clock."""
