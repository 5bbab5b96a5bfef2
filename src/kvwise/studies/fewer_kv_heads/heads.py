"""A trained model with another number of KV heads: its own copied, averaged or left out. Everything else stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from kvwise.checkpoint.quants import dequantize
from kvwise.checkpoint.unnamed_file import UnnamedFile
from kvwise.spec.dtypes import TENSOR_TYPES
from kvwise.spec.model import LayerSpec, ModelSpec
from kvwise.spec.weights import SourceIdentity, Stored, StoredRows
from kvwise.studies.serving import Tensor, tensor

if TYPE_CHECKING:
    from kvwise.checkpoint import Checkpoint

Heads = NDArray[np.float32]  # [KV heads, head_dim, hidden]
Change = Callable[[Heads], Heads]
_TYPE: Final = TENSOR_TYPES["f16"]  # of the projections to K and V, in every variant: only the heads differ


def copied(times: int) -> Change:
    """Each head `times` times: query heads find the K and V that they knew."""
    return lambda heads: np.repeat(heads, times, axis=0)


def as_trained(heads: Heads) -> Heads:
    return heads


def averaged(heads: Heads) -> Heads:
    """One head, the mean of all: what Ainslie et al. (arXiv 2305.13245) start from before they train on."""
    mean: Heads = heads.mean(axis=0, keepdims=True)
    return mean


def first_only(heads: Heads) -> Heads:
    return heads[:1]


class ChangedHeads:
    """The weights of a checkpoint with every layer's KV heads changed. A weight source."""

    def __init__(self, checkpoint: Checkpoint, change: Change) -> None:
        self._checkpoint = checkpoint
        spec = checkpoint.spec
        self._changed: dict[str, Tensor] = {}
        self._file = UnnamedFile()
        layers: list[LayerSpec] = []
        for i, layer in enumerate(spec.layers):
            attention = layer.attention
            for part in ("k", "v"):
                name = f"layers.{i}.attn.{part}.weight"
                heads = change(self._heads(name, attention.num_kv_heads))
                self._changed[name] = tensor(name, heads.reshape(-1, heads.shape[-1]), _TYPE)
            layers.append(LayerSpec(replace(attention, num_kv_heads=heads.shape[0]), layer.mlp))
        self.spec: ModelSpec = replace(spec, layers=tuple(layers))
        self.tensors: Mapping[str, Stored] = {**checkpoint.tensors, **self._changed}

    def read(self, name: str) -> NDArray[np.uint8]:
        return self._changed[name].raw if name in self._changed else self._checkpoint.read(name)

    def locate(self, name: str) -> StoredRows:
        if name in self._changed:
            return self._file.append(_TYPE, self._changed[name].raw)
        return self._checkpoint.locate(name)

    def identity(self) -> SourceIdentity | None:
        return None

    def _heads(self, name: str, num_kv_heads: int) -> Heads:
        stored = self._checkpoint.tensors[name]
        values: Heads = dequantize(self._checkpoint.read(name), stored.type)
        return values.reshape(num_kv_heads, -1, values.shape[-1])
