"""K and V of all blocks in numpy: one array per layer, [slots, 2, kv_heads, head_dim], rounded to the KV type."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvwise.spec.kv import KVCacheSpec

_STORAGE = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}


class KVStore:
    """`layers[i]` holds slot = block · block_tokens + offset along its first axis. Pages are touched when written."""

    def __init__(self, kv: KVCacheSpec, num_blocks: int) -> None:
        self._block_tokens = kv.block_tokens
        self._bf16 = kv.kv_type.name == "bf16"
        slots = num_blocks * kv.block_tokens
        self.layers: tuple[NDArray[Any], ...] = tuple(
            np.zeros((slots, 2, layer.num_kv_heads, layer.k_dim), _STORAGE[kv.kv_type.name]) for layer in kv.layers
        )

    def write(self, layer: int, slots: NDArray[np.int32], k: NDArray[Any], v: NDArray[Any]) -> None:
        """Round and store `k` and `v` [T, kv_heads · head_dim] at `slots` [T]."""
        pool = self.layers[layer]
        both = np.stack([k, v], axis=1).reshape(len(slots), *pool.shape[1:])
        pool[slots] = round_to_bf16(both) if self._bf16 else both.astype(pool.dtype)

    def read(
        self, layer: int, block_table: NDArray[np.int32], context: int, dtype: np.dtype[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """K and V [context, kv_heads, head_dim] of one request, as stored, widened to `dtype`."""
        positions = np.arange(context)
        slots = block_table[positions // self._block_tokens] * self._block_tokens + positions % self._block_tokens
        stored = self.layers[layer][slots]
        wide = (bf16_to_f32(stored) if self._bf16 else stored).astype(dtype)
        return wide[:, 0], wide[:, 1]

    def copy_blocks(self, copies: NDArray[np.int32]) -> None:
        """Copy whole blocks (source, destination), in order."""
        n = self._block_tokens
        for source, destination in copies.tolist():
            for pool in self.layers:
                pool[destination * n : (destination + 1) * n] = pool[source * n : (source + 1) * n]


def round_to_bf16(x: NDArray[Any]) -> NDArray[np.uint16]:
    """The upper 16 bits of float32, rounded to nearest even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_to_f32(bits: NDArray[Any]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)
