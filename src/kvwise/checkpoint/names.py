"""What every tensor is called: canonical name, Hugging Face name, GGUF name, one row each. Reads no files.

Sources: the state dicts of transformers' modeling_llama, _qwen2, _qwen3, _gemma2, _gemma3; GGUF names:
github.com/ggml-org/llama.cpp, gguf-py/gguf/constants.py and tensor_mapping.py.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from kvwise.errors import UnknownArchitecture
from kvwise.registry import Table

Format = Literal["gguf", "safetensors"]
_Rows = dict[str, tuple[str, str]]  # canonical -> (Hugging Face, GGUF), without ".weight" or ".bias"

_MODEL: Final[_Rows] = {
    "embed": ("model.embed_tokens", "token_embd"),
    "final_norm": ("model.norm", "output_norm"),
    "lm_head": ("lm_head", "output"),
}
_LAYER: Final[_Rows] = {
    "attn_norm": ("input_layernorm", "attn_norm"),
    "attn.q": ("self_attn.q_proj", "attn_q"),
    "attn.k": ("self_attn.k_proj", "attn_k"),
    "attn.v": ("self_attn.v_proj", "attn_v"),
    "attn.o": ("self_attn.o_proj", "attn_output"),
    "mlp_norm": ("post_attention_layernorm", "ffn_norm"),
    "mlp.gate": ("mlp.gate_proj", "ffn_gate"),
    "mlp.up": ("mlp.up_proj", "ffn_up"),
    "mlp.down": ("mlp.down_proj", "ffn_down"),
}
_QK_NORMS: Final[_Rows] = {
    "attn.q_norm": ("self_attn.q_norm", "attn_q_norm"),
    "attn.k_norm": ("self_attn.k_norm", "attn_k_norm"),
}
# Gemma norms both sides of each half: Hugging Face's post_attention_layernorm is then another norm.
_POST_NORMS: Final[_Rows] = {
    "attn_post_norm": ("post_attention_layernorm", "post_attention_norm"),
    "mlp_norm": ("pre_feedforward_layernorm", "ffn_norm"),
    "mlp_post_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
}

_FAMILY_LAYERS: Final[Table[_Rows]] = Table(
    "model family",
    {
        "llama": _LAYER,
        "mistral": _LAYER,
        "qwen2": _LAYER,
        "qwen3": _LAYER | _QK_NORMS,
        "gemma2": _LAYER | _POST_NORMS,
        "gemma3": _LAYER | _QK_NORMS | _POST_NORMS,
    },
    UnknownArchitecture,
)

# Tensors that real files hold and the program does not read, and why.
_IGNORED: Final[dict[Format, tuple[tuple[re.Pattern[str], str], ...]]] = {
    "safetensors": (
        (re.compile(r".*\.rotary_emb\.inv_freq"), "rotary frequencies, which the spec gives"),
        (
            re.compile(r"(model\.)?(vision_tower|visual|multi_modal_projector)\..*"),
            "the picture half of a multimodal model",
        ),
    ),
    "gguf": (
        (re.compile(r"rope_freqs\.weight"), "rotary divisors, which the spec holds"),
        (re.compile(r"blk\.\d+\.attn_rot_embd\.weight"), "rotary frequencies, which the spec gives"),
    ),
}

_LAYER_PREFIXES: Final[dict[Format, str]] = {"safetensors": "model.layers.", "gguf": "blk."}
_SPLIT: Final = re.compile(r"(?P<stem>.+)\.(?P<part>weight|bias)")
_INDEXED: Final = re.compile(r"(?P<index>0|[1-9]\d{0,5})\.(?P<rest>.+)")
# A multimodal model nests its language half, in one of two orders.
_NESTED: Final = (("language_model.model.", "model."), ("language_model.lm_head.", "lm_head."),
                  ("model.language_model.", "model."))  # fmt: skip


def canonical_name(file_name: str, family: str, file_format: Format) -> str | None:
    """The canonical name of a file's tensor, None if the family has no such tensor.

    Raises UnknownArchitecture for a family without a row.
    """
    column = 0 if file_format == "safetensors" else 1
    split = _SPLIT.fullmatch(_unnested(file_name) if column == 0 else file_name)
    if split is None:
        return None
    stem, part = split["stem"], split["part"]
    prefix, rows = "", _MODEL
    layer_prefix = _LAYER_PREFIXES[file_format]
    if stem.startswith(layer_prefix):
        indexed = _INDEXED.fullmatch(stem, len(layer_prefix))
        if indexed is None:
            return None
        prefix, stem, rows = f"layers.{indexed['index']}.", indexed["rest"], _FAMILY_LAYERS[family]
    for canonical, names in rows.items():
        if names[column] == stem:
            return f"{prefix}{canonical}.{part}"
    return None


def has_names(family: str) -> bool:
    """Whether the family's tensors can be found in a file."""
    return family in _FAMILY_LAYERS


def file_name_of(canonical: str, family: str, file_format: Format) -> str:
    """The name that a file of `family` gives to a canonical name: the inverse of canonical_name.

    Raises KeyError for a name that is not canonical.
    """
    column = 0 if file_format == "safetensors" else 1
    stem, _, part = canonical.rpartition(".")
    if stem.startswith("layers."):
        _, index, rest = stem.split(".", 2)
        return f"{_LAYER_PREFIXES[file_format]}{index}.{_FAMILY_LAYERS[family][rest][column]}.{part}"
    return f"{_MODEL[stem][column]}.{part}"


def reason_ignored(file_name: str, file_format: Format) -> str | None:
    """Why a file's tensor is rightly not read; None if it is not known to be one of those."""
    for pattern, reason in _IGNORED[file_format]:
        if pattern.fullmatch(file_name):
            return reason
    return None


def _unnested(file_name: str) -> str:
    for nested, plain in _NESTED:
        if file_name.startswith(nested):
            return plain + file_name.removeprefix(nested)
    return file_name
