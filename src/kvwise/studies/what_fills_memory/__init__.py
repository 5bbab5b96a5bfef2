"""What fills memory: weights once, K and V with every token; and what formula, allocator and RSS each see of it."""

from __future__ import annotations

from pathlib import Path

from kvwise.studies.study import Study
from kvwise.studies.what_fills_memory.conclusion import conclude
from kvwise.studies.what_fills_memory.figure import draw
from kvwise.studies.what_fills_memory.measurement import measure

STUDY = Study(
    name="what-fills-memory",
    question="What fills memory, weights or K and V, and why do three tools name three sizes?",
    measure=measure,
    conclude=conclude,
    draw=draw,
    about=Path(__file__).with_name("about.md"),
)
