"""Tiny model files, built byte by byte, so that a test can break each of them in one place.

Written from the format documents, not with kvwise's readers: what reads them back is what is under test.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB, LAYERS = 32, 4, 2, 8, 64, 24, 2

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


class Typed(NamedTuple):
    """A GGUF value with its type. An array's value is a list of Typed, or (element type, list of values)."""

    kind: int
    value: Any


class GgufTensor(NamedTuple):
    """As a GGUF file lists it: `dims` with the contiguous one first; `offset` None = placed in order."""

    name: str
    dims: Sequence[int]
    ggml_type: int
    raw: bytes
    offset: int | None = None


def gguf_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return gguf_string(value)
    if kind == ARRAY:
        element_kind, values = value
        return struct.pack("<IQ", element_kind, len(values)) + b"".join(gguf_value(element_kind, v) for v in values)
    return struct.pack(f"<{_FORMATS[kind]}", value)


def gguf_bytes(
    metadata: Sequence[tuple[str | bytes, Typed]],
    tensors: Sequence[GgufTensor],
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_tensors: int | None = None,
    num_keys: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole GGUF file. The counts default to the truth."""
    out = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(metadata) if num_keys is None else num_keys,
    )
    for key, typed in metadata:
        out += gguf_string(key) + struct.pack("<I", typed.kind) + gguf_value(typed.kind, typed.value)
    data = b""
    for tensor in tensors:
        offset = len(data) if tensor.offset is None else tensor.offset
        out += gguf_string(tensor.name) + struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
        out += struct.pack("<IQ", tensor.ggml_type, offset)
        data += tensor.raw + b"\0" * (-len(tensor.raw) % alignment)
    return out + b"\0" * (-len(out) % alignment) + data


def llama_metadata(**changes: Typed | None) -> list[tuple[str, Typed]]:
    """Metadata of the tiny llama; keyword arguments replace keys (dots written as __), None removes one."""
    values: dict[str, Typed | None] = {
        "general.architecture": Typed(STRING, "llama"),
        "general.name": Typed(STRING, "tiny"),
        "llama.block_count": Typed(U32, LAYERS),
        "llama.context_length": Typed(U32, 64),
        "llama.embedding_length": Typed(U32, HIDDEN),
        "llama.feed_forward_length": Typed(U32, INTERMEDIATE),
        "llama.attention.head_count": Typed(U32, HEADS),
        "llama.attention.head_count_kv": Typed(U32, KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": Typed(F32, 1e-5),
        "llama.rope.dimension_count": Typed(U32, HEAD_DIM),
        "llama.vocab_size": Typed(U32, VOCAB),
        "tokenizer.ggml.model": Typed(STRING, "gpt2"),
        "tokenizer.ggml.tokens": Typed(ARRAY, (STRING, [f"tok{i}" for i in range(VOCAB)])),
        "tokenizer.ggml.token_type": Typed(ARRAY, (I32, [1] * VOCAB)),
    }
    for key, typed in changes.items():
        values[key.replace("__", ".")] = typed
    return [(key, typed) for key, typed in values.items() if typed is not None]


def llama_weights(seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """The tiny llama's weights by Hugging Face name, tied embeddings."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        p = f"model.layers.{i}"
        shapes |= {
            f"{p}.input_layernorm.weight": (HIDDEN,),
            f"{p}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{p}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{p}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{p}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{p}.post_attention_layernorm.weight": (HIDDEN,),
            f"{p}.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{p}.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{p}.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers.": "blk.",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf_name(hf_name: str) -> str:
    for hf, gguf in _GGUF_NAMES.items():
        hf_name = hf_name.replace(hf, gguf)
    return hf_name


def interleaved(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of q or k as a llama GGUF stores them: pair j of a head in rows 2j and 2j + 1."""
    out = np.empty_like(weight)
    head_dim = len(weight) // heads
    for head in range(heads):
        for j in range(head_dim // 2):
            for half in range(2):
                out[head * head_dim + 2 * j + half] = weight[head * head_dim + half * head_dim // 2 + j]
    return out


def llama_gguf_tensors(weights: Mapping[str, NDArray[np.float32]] | None = None) -> list[GgufTensor]:
    out = []
    for name, weight in (weights or llama_weights()).items():
        stored = weight
        if "q_proj" in name or "k_proj" in name:
            stored = interleaved(weight, HEADS if "q_proj" in name else KV_HEADS)
        out.append(GgufTensor(gguf_name(name), weight.shape[::-1], 0, stored.tobytes()))
    return out


def llama_gguf() -> bytes:
    """A valid tiny llama in GGUF, all float32."""
    return gguf_bytes(llama_metadata(), llama_gguf_tensors())


def safetensors_bytes(tensors: Mapping[str, NDArray[Any]], *, header: Mapping[str, Any] | None = None) -> bytes:
    """A safetensors file of float32, float16 or (as uint16) bfloat16 arrays; `header` replaces entries."""
    dtypes = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int8": "I8"}
    entries: dict[str, Any] = {}
    data = b""
    for name, array in tensors.items():
        entries[name] = {
            "dtype": dtypes[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    return safetensors_raw(json.dumps(entries | dict(header or {})).encode(), data)


def safetensors_raw(header: bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def llama_config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    } | changes


def write_single(folder: Path, weights: Mapping[str, NDArray[Any]] | None = None, **config: Any) -> Path:
    """A folder with config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(llama_config(**config)))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(weights or llama_weights()))
    return folder


def write_sharded(folder: Path, num_shards: int = 3) -> Path:
    """A folder with config.json, an index and its shards."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = llama_weights()
    names = list(weights)
    weight_map = {}
    for i in range(num_shards):
        shard = f"model-{i + 1:05d}-of-{num_shards:05d}.safetensors"
        mine = {name: weights[name] for name in names[i::num_shards]}
        (folder / shard).write_bytes(safetensors_bytes(mine))
        weight_map |= dict.fromkeys(mine, shard)
    write_index(folder, weight_map, sum(w.nbytes for w in weights.values()))
    (folder / "config.json").write_text(json.dumps(llama_config()))
    return folder


def write_index(folder: Path, weight_map: Any, total_size: Any) -> None:
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def read_index(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "model.safetensors.index.json").read_text())
    return loaded
