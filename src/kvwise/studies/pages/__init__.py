"""Pages: what of a pool holds tokens when requests reserve it in one piece, and when they take blocks as they grow."""

from __future__ import annotations

from pathlib import Path

from kvwise.studies.pages.conclusion import conclude
from kvwise.studies.pages.figure import draw
from kvwise.studies.pages.measurement import measure
from kvwise.studies.study import Study

STUDY = Study(
    name="pages",
    question="How many requests fit into a pool of K and V, if each reserves one piece, and if it takes blocks?",
    measure=measure,
    conclude=conclude,
    draw=draw,
    about=Path(__file__).with_name("about.md"),
    takes_trace=True,
)
