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
        "phi3": "kvwise.models.llama:program",
        "smollm3": "kvwise.models.llama:program",
        "mixtral": "kvwise.models.llama:program",
        "qwen3_moe": "kvwise.models.llama:program",
        "glm4_moe": "kvwise.models.llama:program",
        "minimax_m2": "kvwise.models.llama:program",
        "gpt_oss": "kvwise.models.llama:program",
        "llama4": "kvwise.models.llama:program",
        "mimo_v2_flash": "kvwise.models.llama:program",
        "deepseek_v2": "kvwise.models.llama:program",
        "deepseek_v3": "kvwise.models.llama:program",
        "deepseek_v32": "kvwise.models.llama:program",
        "glm_moe_dsa": "kvwise.models.llama:program",
        "qwen3_next": "kvwise.models.llama:program",
        "qwen3_5": "kvwise.models.llama:program",
        "qwen3_5_moe": "kvwise.models.llama:program",
        "nemotron_h": "kvwise.models.llama:program",
        "olmo2": "kvwise.models.olmo2:program",
        "gpt2": "kvwise.models.gpt:program",
        "opt": "kvwise.models.gpt:program",
        "gpt_neox": "kvwise.models.gpt:program",
        "phi": "kvwise.models.gpt:program",
        "falcon": "kvwise.models.gpt:program",
        "gemma2": "kvwise.models.gemma:program",
        "gemma3": "kvwise.models.gemma:program",
        "gemma4": "kvwise.models.gemma4:program",
    },
    UnknownArchitecture,
)


def build_program(spec: ModelSpec) -> Program:
    """The program of `spec`'s family. Raises UnknownArchitecture, naming the known ones."""
    return FAMILIES[spec.family](spec)
