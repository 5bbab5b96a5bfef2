"""Fewer KV heads: what MHA, GQA and MQA of one size keep and take, and why a trained model can't be given fewer."""

from __future__ import annotations

from pathlib import Path

from kvwise.studies.fewer_kv_heads.conclusion import conclude
from kvwise.studies.fewer_kv_heads.figure import draw
from kvwise.studies.fewer_kv_heads.measurement import measure
from kvwise.studies.study import Study

STUDY = Study(
    name="fewer-kv-heads",
    question="What do fewer KV heads save, in bytes and in time, and can a trained model's number be changed?",
    measure=measure,
    conclude=conclude,
    draw=draw,
    about=Path(__file__).with_name("about.md"),
)
