"""The ledger: what a model will hold, whether this machine has it, and afterwards what was measured, row by row."""
