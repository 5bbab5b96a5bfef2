"""All studies by name, each loaded when it is asked for, and the finding that was committed with it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kvwise.errors import UsageError
from kvwise.registry import Table
from kvwise.studies.folder import README
from kvwise.studies.study import Study

STUDIES: Final[Table[Study]] = Table(
    "study",
    {
        "what-fills-memory": "kvwise.studies.what_fills_memory:STUDY",
        "fewer-kv-heads": "kvwise.studies.fewer_kv_heads:STUDY",
        "pages": "kvwise.studies.pages:STUDY",
        "training-prefill-decode": "kvwise.studies.training_prefill_decode:STUDY",
    },
    UsageError,
)


def shipped_folder(name: str) -> Path:
    """Where the study of that name keeps its code and the results that were committed with it."""
    return Path(__file__).parent / name.replace("-", "_")


def shipped_finding(name: str) -> str:
    """The first line of its README; empty where there is none."""
    try:
        first = (shipped_folder(name) / README).read_text("utf-8").partition("\n")[0]
    except OSError:
        return ""
    return first.removeprefix("#").strip()
