"""Hugging Face folders: bfloat16, and 8-bit weights as compressed-tensors has them. Owns their layouts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvwise.checkpoint.names import file_name_of
from kvwise.checkpoint.quants import quantize

from . import vocabulary
from .sources import BF16, Floats, Source


def write_folder(source: Source, folder: Path) -> None:
    """A Hugging Face folder in bfloat16."""
    shapes = source.shape.tensors()
    names = {name: file_name_of(name, source.shape.family, "safetensors") for name in shapes}
    entries = [
        Entry(names[n], "BF16", shapes[n], lambda n=n: quantize(source.values(n), BF16))  # type: ignore[misc]
        for n in shapes
    ]
    write_safetensors(folder / "model.safetensors", entries)
    _write_settings(source, folder, {})


def write_w8a8(source: Source, folder: Path) -> None:
    """compressed-tensors, int-quantized: 8-bit weights with a scale per output, activations quantized per token.

    Format: github.com/vllm-project/compressed-tensors. Embeddings and the tied head stay bfloat16.
    """
    entries: list[Entry] = []
    for name, shape in source.shape.tensors().items():
        file_name = file_name_of(name, source.shape.family, "safetensors")
        if file_name.endswith("proj.weight"):
            entries.append(Entry(file_name, "I8", shape, lambda n=name: _per_row(source.values(n))[0]))  # type: ignore[misc]
            scales = Entry(file_name + "_scale", "BF16", (shape[0], 1), lambda n=name: _per_row(source.values(n))[1])  # type: ignore[misc]
            entries.append(scales)
        else:
            entries.append(Entry(file_name, "BF16", shape, lambda n=name: quantize(source.values(n), BF16)))  # type: ignore[misc]
    write_safetensors(folder / "model.safetensors", entries)
    _write_settings(source, folder, {"quantization_config": _w8a8_config()})


def _per_row(values: Floats) -> tuple[NDArray[Any], NDArray[Any]]:
    """Signed bytes, and bfloat16 scales as bytes."""
    scales = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    codes = np.clip(np.rint(values / np.where(scales == 0, 1, scales)), -128, 127).astype(np.int8)
    return codes, quantize(scales, BF16)


def _w8a8_config() -> dict[str, Any]:
    def numbers(strategy: str, dynamic: bool) -> dict[str, Any]:
        return {"num_bits": 8, "type": "int", "symmetric": True, "strategy": strategy, "dynamic": dynamic}

    group = {"targets": ["Linear"], "weights": numbers("channel", False), "input_activations": numbers("token", True)}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


@dataclass(frozen=True)
class Entry:
    """One tensor of a safetensors file; `make` gives its bytes when they are written."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], NDArray[Any]]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * {"BF16": 2, "I8": 1}[self.dtype]


def write_safetensors(path: Path, entries: list[Entry]) -> None:
    """Length of the header, the header, the tensors end to end (github.com/huggingface/safetensors)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for entry in entries:
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": [at, at + entry.nbytes],
        }
        at += entry.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in entries:
            raw = np.ascontiguousarray(entry.make())
            if raw.nbytes != entry.nbytes:
                raise ValueError(f"{entry.name} has {raw.nbytes} bytes, not {entry.nbytes}")
            file.write(raw.data)


def _write_settings(source: Source, folder: Path, extra: Mapping[str, Any]) -> None:
    shape, words = source.shape, source.vocabulary
    config = {
        "architectures": [{"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}[shape.family]],
        "model_type": shape.family,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.positions,
        "rope_theta": shape.theta,
        "rms_norm_eps": shape.eps,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": words.bos_id,
        "eos_token_id": words.eos_id,
        **extra,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"bos_token_id": words.bos_id, "eos_token_id": words.eos_id})
    vocabulary.write_files(words, folder, shape.positions)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), "utf-8")
