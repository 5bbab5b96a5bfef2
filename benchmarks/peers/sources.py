"""Weights before they are written in any format: random ones in the shapes of known models, and SmolLM2's.

Random values depend on the seed and the tensor's name only, are drawn from N(0, 0.02) and rounded to bfloat16, so that
every format starts from the same bits. Norms are 1. Knows no file but the bundled one.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from kvwise.checkpoint import open_checkpoint
from kvwise.checkpoint.bundled import fetch_bundled
from kvwise.checkpoint.quants import dequantize, quantize
from kvwise.spec.dtypes import TENSOR_TYPES

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
    """SmolLM2 as bundled, dequantized, and rounded to bfloat16 unless `exact`."""

    shape = SMOLLM2_SHAPE

    def __init__(self, *, exact: bool = False) -> None:
        self._exact = exact
        self._checkpoint = open_checkpoint(fetch_bundled())
        self.vocabulary = vocabulary.of_gguf(self._checkpoint.metadata)

    def values(self, name: str) -> Floats:
        stored = self._checkpoint.tensors[name]
        values: Floats = dequantize(self._checkpoint.read(name), stored.type)
        return values if self._exact else _as_bf16(values)


def source_of(model: str) -> Source:
    return BundledSource() if model == SMOLLM2 else RandomSource(SHAPES[model])


def shape_of(model: str) -> Shape:
    return SMOLLM2_SHAPE if model == SMOLLM2 else SHAPES[model]


def _as_bf16(values: Floats) -> Floats:
    return dequantize(quantize(values, BF16), BF16).astype(np.float32, copy=False)
