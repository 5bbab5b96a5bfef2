"""Training, prefill and decode: one layer in each, what it must keep, how many positions it takes, what that rules."""

from __future__ import annotations

from pathlib import Path

from kvwise.studies.study import Study
from kvwise.studies.training_prefill_decode.conclusion import conclude
from kvwise.studies.training_prefill_decode.figure import draw
from kvwise.studies.training_prefill_decode.measurement import measure

STUDY = Study(
    name="training-prefill-decode",
    question="What does one and the same layer keep and do in training, in prefill and in decode?",
    measure=measure,
    conclude=conclude,
    draw=draw,
    about=Path(__file__).with_name("about.md"),
)
