"""The readable backend: numpy, one short function per op. The truth that every other backend is held to."""
