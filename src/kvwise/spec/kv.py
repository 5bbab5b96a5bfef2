"""The KV cache's byte arithmetic: how many bytes a token, a block, a request and a pool hold. Owns no memory.

Held bytes (kv_stored_bytes) and moved bytes (kv_read_bytes) are different quantities and never share a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvwise.errors import UsageError
from kvwise.registry import Table
from kvwise.spec.dtypes import TensorType
from kvwise.spec.model import ModelSpec
from kvwise.units import ceil_div

BLOCK_TOKENS: Final = 16  # one AVX-512 vector of float32 scores; the unit of sharing and hashing

_F32, _F16, _BF16 = (TensorType(n, 1, b, None) for n, b in (("f32", 4), ("f16", 2), ("bf16", 2)))
KV_TYPES: Final[Table[TensorType]] = Table("KV type", {t.name: t for t in (_F32, _F16, _BF16)}, UsageError)


@dataclass(frozen=True, slots=True)
class LayerKV:
    """What one layer keeps of one token: K and V of `num_kv_heads` heads. `window` None = it grows for ever."""

    num_kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None

    @property
    def elements_per_token(self) -> int:
        return self.num_kv_heads * (self.k_dim + self.v_dim)


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Layers × type × block size. bytes per token = Σ layers · KV heads · (k_dim + v_dim) · element bytes."""

    layers: tuple[LayerKV, ...]
    kv_type: TensorType
    block_tokens: int = BLOCK_TOKENS

    @classmethod
    def of(cls, spec: ModelSpec, kv_type: str = "f16", block_tokens: int = BLOCK_TOKENS) -> KVCacheSpec:
        """The cache of `spec`. Raises UsageError for an unknown KV type."""
        layers = tuple(
            LayerKV(a.num_kv_heads, a.head_dim, a.head_dim, a.window)
            for a in (layer.attention for layer in spec.layers)
        )
        return cls(layers, KV_TYPES[kv_type], block_tokens)

    def layer_bytes_per_token(self, layer: int) -> int:
        return self.kv_type.row_bytes(self.layers[layer].elements_per_token)

    @property
    def bytes_per_token(self) -> int:
        """All layers, windowed or not."""
        return sum(self.kv_type.row_bytes(layer.elements_per_token) for layer in self.layers)

    @property
    def bytes_per_token_growing(self) -> int:
        """Only the layers that keep every token: what each further token adds beyond every window."""
        return sum(self.kv_type.row_bytes(layer.elements_per_token) for layer in self.layers if layer.window is None)

    @property
    def bytes_per_block(self) -> int:
        return self.block_tokens * self.bytes_per_token

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens of one request."""
        return ceil_div(num_tokens, self.block_tokens)

    def kv_stored_bytes(self, context: int, *, evict_windows: bool = False) -> int:
        """Bytes held for one request of `context` tokens, exact tokens, no block rounding.

        With `evict_windows` a windowed layer holds at most its window.
        """
        if not evict_windows:
            return context * self.bytes_per_token
        return sum(
            min(context, layer.window or context) * self.kv_type.row_bytes(layer.elements_per_token)
            for layer in self.layers
        )

    def kv_read_bytes(self, layer: int, context: int) -> int:
        """Bytes that attention of one query position at the end of `context` tokens reads in one layer."""
        visible = min(context, self.layers[layer].window or context)
        return visible * self.layer_bytes_per_token(layer)
