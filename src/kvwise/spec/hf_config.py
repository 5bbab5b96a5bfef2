"""ModelSpec from a Hugging Face `config.json`: which reader understands it. Fields' names: families/ and hf_rope.py.

One row for each model_type. Multimodal configs nest the language model's; those types name the field to look in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvwise.errors import SpecError, UnknownArchitecture
from kvwise.registry import Table
from kvwise.spec.check import check_spec
from kvwise.spec.fields import Fields, shown
from kvwise.spec.model import ModelSpec
from kvwise.spec.pictures import read_pictures

Reader = Callable[[Fields, Fields, str], ModelSpec]  # (the language model's fields, the whole config's, its type)

_ROWS: Final = {
    "llama": "decoder",
    "mistral": "decoder",
    "qwen2": "decoder",
    "qwen3": "decoder",
    "qwen3_vl_text": "decoder",
    "mimo": "decoder",
    "phi3": "decoder",
    "smollm3": "decoder",
    "olmo2": "decoder",
    "gemma2": "decoder",
    "gemma3_text": "decoder",
    "mixtral": "decoder",
    "qwen3_moe": "decoder",
    "qwen3_vl_moe_text": "decoder",
    "glm4_moe": "decoder",
    "minimax_m2": "decoder",
    "gpt2": "gpt2",
    "opt": "gpt2",
    "gpt_neox": "parallel",
    "phi": "parallel",
    "falcon": "parallel",
    "gpt_oss": "gpt_oss",
    "llama4_text": "llama4",
    "mimo_v2_flash": "mimo",
    "gemma4_text": "gemma4",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "kimi_k2": "deepseek",
    "deepseek_v32": "deepseek",
    "glm_moe_dsa": "deepseek",
    "qwen3_next": "qwen3_next",
    "qwen3_5_text": "qwen3_next",
    "qwen3_5_moe_text": "qwen3_next",
    "nemotron_h": "nemotron_h",
}
# Multimodal types: their text_config is a model of this type where it does not say another.
_NESTED: Final = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "kimi_k25": "kimi_k2",
}
_READERS: Final[Table[Reader]] = Table(
    "model_type", {name: f"kvwise.spec.families.{module}:read" for name, module in _ROWS.items()}, UnknownArchitecture
)

KNOWN_MODEL_TYPES: Final = (*_ROWS, *_NESTED)


def spec_from_config(config: Mapping[str, object]) -> ModelSpec:
    """The model that a parsed config.json describes. Pure.

    Raises UnknownArchitecture for a model_type that is not known, SpecError naming the field for anything else.
    """
    if not isinstance(config, Mapping):
        raise SpecError(f"the config is {shown(config)}", expected="a JSON object")
    top = Fields(config)
    model_type = whole_type = top.text("model_type")
    fields = top
    if model_type in _NESTED:
        text = top.mapping("text_config")
        if text is None:
            raise SpecError("text_config is missing", expected=f"the language model's config in a {model_type} config")
        fields, model_type = text, text.text("model_type", _NESTED[model_type])
    if model_type not in _READERS:
        raise UnknownArchitecture(
            f"unknown model_type {shown(model_type)}", expected=f"one of {', '.join(sorted(KNOWN_MODEL_TYPES))}"
        )
    spec = check_spec(_READERS[model_type](fields, top, model_type))
    pictures = read_pictures(top, whole_type)
    return spec if pictures is None else replace(spec, pictures=pictures)
