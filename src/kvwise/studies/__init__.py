"""Studies: what the KV cache is and does, measured on the machine at hand. One folder each, with its committed results.

    study.py      what a study is        table.py     all of them, by name
    folder.py     what a run writes      machine.py   where it was measured

A study's folder holds what a run of it wrote: README.md, whose first line is the finding, figure.svg and .png, and
results.json; and beside it what makes them: measurement.py, conclusion.py, figure.py and about.md.
"""
