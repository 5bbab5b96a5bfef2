"""kvwise beside its peers: the same weights, tokens and threads, alternating in one run.

sources.py       weights: random ones in the shapes of known models, and the bundled ones
models.py        each model in every format that a peer reads; folders.py, gguf_files.py write them
environments.py  where each peer is installed, and how
server.py        the line-JSON protocol that a peer's process answers; *_peer.py are those processes
harness.py       one process per peer, samples that know how much others disturbed them
cells.py         what is measured, and by whom
report.py        medians, ratios, the table and the JSON; figure.py draws it
"""
