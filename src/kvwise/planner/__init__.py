"""What a model will cost on a machine: memory, latency, and the measuring of the machine itself."""
