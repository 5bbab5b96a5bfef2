"""Model families: one function each, from a ModelSpec to the Program that all backends read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvwise.errors import UnknownArchitecture
from kvwise.program.ir import Program
from kvwise.registry import Table
from kvwise.spec.model import ModelSpec

FAMILIES: Final[Table[Callable[[ModelSpec], Program]]] = Table(
    "model family",
    {
        "llama": "kvwise.models.llama:program",
        "mistral": "kvwise.models.llama:program",
        "qwen2": "kvwise.models.llama:program",
        "qwen3": "kvwise.models.llama:program",
        "gemma2": "kvwise.models.gemma:program",
        "gemma3": "kvwise.models.gemma:program",
    },
    UnknownArchitecture,
)


def build_program(spec: ModelSpec) -> Program:
    """The program of `spec`'s family. Raises UnknownArchitecture, naming the known ones."""
    return FAMILIES[spec.family](spec)
