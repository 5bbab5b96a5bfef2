"""Safetensors files that are all header: tensors of any dtype and shape, their bytes a hole in the file."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Tensors = dict[str, tuple[str, tuple[int, ...]]]  # name -> (dtype, shape)

_BITS = {"F32": 32, "I32": 32, "I64": 64, "F16": 16, "BF16": 16, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F4": 4}


def stored_bytes(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> int:
    return sum(math.prod(shape) * _BITS[dtype] // 8 for dtype, shape in tensors.values())


def write_headers(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    """A folder with config.json and model.safetensors. Takes no room: the data are never written."""
    entries, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * _BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(entries).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def llama_matrices(layers: int, hidden: int, kv_width: int, inner: int) -> dict[str, tuple[int, int]]:
    """[out, in] of the matrices that quantizers quantize, by Hugging Face name without '.weight'."""
    return {
        f"model.layers.{i}.{name}": shape
        for i in range(layers)
        for name, shape in {
            "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv_width, hidden),
            "self_attn.v_proj": (kv_width, hidden), "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
        }.items()
    }  # fmt: skip


def plain_tensors(layers: int, hidden: int, vocab: int, *, head: bool = True, dtype: str = "F16") -> Tensors:
    """What quantizers leave as it is: embedding, head, norms."""
    out: Tensors = {"model.embed_tokens.weight": (dtype, (vocab, hidden)), "model.norm.weight": (dtype, (hidden,))}
    if head:
        out["lm_head.weight"] = (dtype, (vocab, hidden))
    for i in range(layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            out[f"model.layers.{i}.{norm}.weight"] = (dtype, (hidden,))
    return out
