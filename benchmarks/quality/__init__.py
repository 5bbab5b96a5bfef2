"""What each kind of weights and each kind of K and V costs in quality, and how close we are to llama.cpp on one file.

text.py          the text and where it is from
windows.py       which tokens are scored, given which others; what is kept of their logits
weights.py       the kinds of weights and of K and V that are measured, and their files
llamacpp.py      the same by llama.cpp, in a process of its own environment
report.py        the table, from the JSON

    python -m quality            with benchmarks/ on PYTHONPATH
"""
