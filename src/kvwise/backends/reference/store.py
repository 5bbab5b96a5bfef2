"""K and V of all blocks in numpy: per layer the bytes of [slots, 2, kv_heads], each head in the KV type."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvwise.backends.reference.kv_codec import decode, encode
from kvwise.spec.kv import KVCacheSpec


class KVStore:
    """`layers[i]` holds slot = block · block_tokens + offset along its first axis. Pages are touched when written."""

    def __init__(self, kv: KVCacheSpec, num_blocks: int) -> None:
        self._kv = kv
        self._type = kv.kv_type.name
        slots = num_blocks * kv.block_tokens
        self.layers: tuple[NDArray[np.uint8], ...] = tuple(
            np.zeros((slots, 2, layer.num_kv_heads, kv.kv_type.token_bytes(1, layer.k_dim, 0)), np.uint8)
            for layer in kv.layers
        )

    def write(self, layer: int, slots: NDArray[np.int32], k: NDArray[Any], v: NDArray[Any]) -> None:
        """Round and store `k` and `v` [T, kv_heads · head_dim] at `slots` [T]."""
        heads = self._kv.layers[layer].num_kv_heads
        both = np.stack([k, v], axis=1).reshape(len(slots), 2, heads, self._kv.layers[layer].k_dim)
        self.layers[layer][slots] = encode(self._type, both)

    def read(
        self, layer: int, block_table: NDArray[np.int32], context: int, dtype: np.dtype[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """K and V [context, kv_heads, head_dim] of one request, as stored, widened to `dtype`."""
        n = self._kv.block_tokens
        positions = np.arange(context)
        slots = block_table[positions // n] * n + positions % n
        wide = decode(self._type, self.layers[layer][slots], self._kv.layers[layer].k_dim, dtype)
        return wide[:, 0], wide[:, 1]

    def copy_blocks(self, copies: NDArray[np.int32]) -> None:
        """Copy whole blocks (source, destination), in order."""
        n = self._kv.block_tokens
        for source, destination in copies.tolist():
            for pool in self.layers:
                pool[destination * n : (destination + 1) * n] = pool[source * n : (source + 1) * n]
