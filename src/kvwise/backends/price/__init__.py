"""The reading of a program that computes nothing: seconds per op and per step, from a device profile."""
