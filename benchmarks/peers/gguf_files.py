"""GGUF files of any tensor types, laid out as llama.cpp's converter does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvwise.checkpoint.names import file_name_of
from kvwise.checkpoint.quants import quantize
from kvwise.spec.dtypes import TENSOR_TYPES, TensorType

from . import vocabulary
from .sources import Floats, Shape, Source

TypeOf = Callable[[str], str]
"""From a matrix's canonical name to the tensor type it is stored in."""

Encode = Callable[[str, Floats, TensorType], NDArray[np.uint8]]
"""Rows [r, n] of the named tensor as bytes [r, row_bytes]."""

FEW_BITS: Final = ("q4_0", "q4_1", "q5_0", "q5_1")


def uniform(kind: str) -> TypeOf:
    """Every matrix in `kind`, but tied embeddings in at least 8 bits, as llama.cpp has them."""
    return lambda name: "q8_0" if kind in FEW_BITS and name == "embed.weight" else kind


def write_gguf(source: Source, path: Path, type_of: TypeOf, encode: Encode | None = None) -> None:
    """Matrices as `type_of` says, vectors in float32. `encode` quantizes; by default as this project does."""
    import gguf

    shape = source.shape
    writer = gguf.GGUFWriter(path, shape.family)
    writer.add_name(path.stem)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(shape.theta)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_vocab_size(shape.vocab)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    vocabulary.write_gguf(source.vocabulary, writer)
    tensors = [
        (name, TENSOR_TYPES["f32" if len(size) == 1 else type_of(name)], size) for name, size in shape.tensors().items()
    ]
    for name, tensor_type, size in tensors:
        stored = (*size[:-1], tensor_type.row_bytes(size[-1]))
        raw_type = gguf.GGMLQuantizationType[tensor_type.name.upper()]
        file_name = file_name_of(name, shape.family, "gguf")
        writer.add_tensor_info(file_name, stored, np.dtype(np.uint8), int(np.prod(stored)), raw_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, tensor_type, size in tensors:
        values = in_gguf_order(name, source.values(name), shape)
        raw = encode(name, values, tensor_type) if encode else quantize(values, tensor_type)
        writer.write_tensor_data(raw.reshape(*size[:-1], -1))
    writer.close()


def in_gguf_order(name: str, values: Floats, shape: Shape) -> Floats:
    """llama's q and k rows interleave the halves of each rotary pair (llama.cpp, convert_hf_to_gguf.py)."""
    heads = {"attn.q": shape.heads, "attn.k": shape.kv_heads}.get(".".join(name.split(".")[2:4]))
    if shape.family != "llama" or heads is None:
        return values
    pairs = values.reshape(heads, 2, shape.head_dim // 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
