"""Small and large models for tests of prices, with the bytes of their weights."""

from __future__ import annotations

from typing import Any

from kvwise.backends.price.efficiency import Efficiency
from kvwise.backends.price.engines import ENGINES
from kvwise.backends.price.roofline import RooflinePricer
from kvwise.hardware.devices import parse_placement
from kvwise.models import build_program
from kvwise.planner.pricing import roofline_pricer
from kvwise.planner.sizes import stored_bytes, uniform_types, weight_type
from kvwise.program.ir import Program
from kvwise.spec.hf_config import spec_from_config
from kvwise.spec.kv import KVCacheSpec

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_32B: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 5120, "num_hidden_layers": 64, "intermediate_size": 25600,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
}  # fmt: skip


def program_of(config: dict[str, Any]) -> Program:
    return build_program(spec_from_config(config))


def pricer_of(
    config: dict[str, Any],
    placement: str = "h100",
    engine: str = "vllm",
    *,
    weights: str = "bf16",
    efficiency: Efficiency | None = None,
    compute: str | None = None,
) -> RooflinePricer:
    program = program_of(config)
    types = uniform_types(program, weight_type(weights))
    return roofline_pricer(
        program, types, stored_bytes(program, types), KVCacheSpec.of(spec_from_config(config), "bf16"),
        parse_placement(placement), ENGINES[engine], efficiency=efficiency, compute=compute,
    )  # fmt: skip
