"""The cache's byte arithmetic: how many bytes a token, a block, a request and a pool hold. Owns no memory.

Held bytes (kv_stored_bytes) and moved bytes (kv_read_bytes) are different quantities and never share a name. Three
kinds of memory are told apart: K and V, which grow with every token unless a window or chunk bounds them; keys of an
index, which grow beside them; and states, which a request holds once, however long it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from kvwise.errors import SpecError, UsageError
from kvwise.frozen import dataclass
from kvwise.registry import Table
from kvwise.spec.dtypes import TENSOR_TYPES, TensorType
from kvwise.spec.layers import (
    AttentionSpec,
    DeltaNetSpec,
    LatentAttentionSpec,
    Mamba2Spec,
    Mixer,
    VariedAttentionSpec,
)
from kvwise.spec.model import ModelSpec
from kvwise.units import align_up, ceil_div

BLOCK_TOKENS: Final = 16  # one AVX-512 vector of float32 scores; the unit of sharing and hashing

_F32, _F16, _BF16 = (TensorType(n, 1, b, None) for n, b in (("f32", 4), ("f16", 2), ("bf16", 2)))


@dataclass(frozen=True, slots=True)
class KVType:
    """How K and V are stored. `scale_bytes`: of the scale beside K, and beside V, of each token and head; 0 = none.

    A head with a scale is stored in whole blocks of `element`; without one, all heads of a token are one row.
    """

    name: str
    element: TensorType
    scale_bytes: int = 0

    def token_bytes(self, num_heads: int, k_dim: int, v_dim: int) -> int:
        """K and V of one token in one layer. Raises SpecError where a row is not a whole number of blocks."""
        if not self.scale_bytes:
            return self.element.row_bytes(num_heads * (k_dim + v_dim))
        widths = (align_up(dim, self.element.block_elements) for dim in (k_dim, v_dim) if dim)
        return num_heads * sum(self.element.row_bytes(width) + self.scale_bytes for width in widths)


# Integers are symmetric around 0, with a float16 scale. q8_0 is counted; the backends say which types they store.
KV_TYPES: Final[Table[KVType]] = Table(
    "KV type",
    {t.name: KVType(t.name, t) for t in (_F32, _F16, _BF16, TENSOR_TYPES["q8_0"])}
    | {t.name: KVType(t.name, t, 2) for t in (TensorType("int8", 16, 16, None), TensorType("int4", 16, 8, None))},
    UsageError,
)


@dataclass(frozen=True, slots=True)
class LayerKV:
    """What one layer keeps of one token: K and V of `num_kv_heads` heads. `window` None = it grows for ever.

    A latent (MLA) is one head of K without V. chunk: a query sees its own chunk of this many positions only.
    index_bytes: what an index keeps of the token beside K and V, in a type of its own.
    """

    num_kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None
    chunk: int | None = None
    index_bytes: int = 0

    @property
    def elements_per_token(self) -> int:
        return self.num_kv_heads * (self.k_dim + self.v_dim)

    def bytes_per_token(self, kv_type: KVType) -> int:
        return kv_type.token_bytes(self.num_kv_heads, self.k_dim, self.v_dim)

    @property
    def bound(self) -> int | None:
        """The most tokens that are ever read again; None where all are."""
        return self.window or self.chunk


@dataclass(frozen=True, slots=True)
class LayerState:
    """What one layer keeps of one request, whatever its length. The recurrent part is float32: it is a running sum
    over all tokens, where smaller types lose it; the last tokens that a convolution still needs are 16-bit."""

    recurrent_elements: int
    conv_elements: int

    @property
    def nbytes(self) -> int:
        return _F32.row_bytes(self.recurrent_elements) + _BF16.row_bytes(self.conv_elements)


def layer_kv(mixer: Mixer | None) -> LayerKV | None:
    """What `mixer` keeps per token; None where it keeps nothing, or reads what another layer keeps."""
    if isinstance(mixer, LatentAttentionSpec):
        index_bytes = mixer.indexer.bytes_per_token if mixer.indexer else 0
        return LayerKV(1, mixer.kv_rank + mixer.rope_dim, 0, None, index_bytes=index_bytes)
    if isinstance(mixer, VariedAttentionSpec):
        if mixer.kv_layer is not None:
            return None
        return LayerKV(mixer.num_kv_heads, mixer.head_dim, mixer.value_dim, mixer.window, mixer.chunk)
    if isinstance(mixer, AttentionSpec):
        return LayerKV(mixer.num_kv_heads, mixer.head_dim, mixer.head_dim, mixer.window)
    return None


def layer_state(mixer: Mixer | None) -> LayerState | None:
    """What `mixer` keeps per request; None where it keeps nothing."""
    if isinstance(mixer, DeltaNetSpec):
        recurrent = mixer.num_value_heads * mixer.key_dim * mixer.value_dim
        return LayerState(recurrent, mixer.conv_width * (mixer.conv_kernel - 1))
    if isinstance(mixer, Mamba2Spec):
        recurrent = mixer.num_heads * mixer.head_dim * mixer.state_dim
        return LayerState(recurrent, mixer.conv_width * (mixer.conv_kernel - 1))
    return None


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Layers × type × block size. bytes per token = Σ layers · KV heads · (k_dim + v_dim) · element bytes,
    and the scales of types that have them.

    `layers` has one entry for each layer that keeps K and V, in the model's order; `states` one for each that keeps
    a state.
    """

    layers: tuple[LayerKV, ...]
    kv_type: KVType
    block_tokens: int = BLOCK_TOKENS
    states: tuple[LayerState, ...] = ()

    @classmethod
    def of(cls, spec: ModelSpec, kv_type: str = "f16", block_tokens: int = BLOCK_TOKENS) -> KVCacheSpec:
        """The cache of `spec`. Raises UsageError for an unknown KV type."""
        kept = tuple(kv for layer in spec.layers if (kv := layer_kv(layer.mixer)) is not None)
        states = tuple(state for layer in spec.layers if (state := layer_state(layer.mixer)) is not None)
        return cls(kept, KV_TYPES[kv_type], block_tokens, states)

    def smaller_types(self, names: Iterable[str]) -> list[str]:
        """Those of `names` in which a token takes fewer bytes; none in which a row can't be stored."""
        found = []
        for name in names:
            with suppress(SpecError):
                if replace(self, kv_type=KV_TYPES[name]).bytes_per_token < self.bytes_per_token:
                    found.append(name)
        return found

    def layer_bytes_per_token(self, layer: int) -> int:
        return self.layers[layer].bytes_per_token(self.kv_type)

    @property
    def bytes_per_token(self) -> int:
        """All layers, windowed or not."""
        return sum(layer.bytes_per_token(self.kv_type) for layer in self.layers)

    @property
    def bytes_per_token_growing(self) -> int:
        """Only the layers that keep every token: what each further token adds beyond every window and chunk."""
        return sum(layer.bytes_per_token(self.kv_type) for layer in self.layers if layer.bound is None)

    @property
    def index_bytes_per_token(self) -> int:
        """Keys of the indexes, beside K and V."""
        return sum(layer.index_bytes for layer in self.layers)

    @property
    def state_bytes_per_request(self) -> int:
        """What a request holds once, whatever its length."""
        return sum(state.nbytes for state in self.states)

    @property
    def bytes_per_block(self) -> int:
        """K, V and index keys of one block."""
        return self.block_tokens * (self.bytes_per_token + self.index_bytes_per_token)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens of one request."""
        return ceil_div(num_tokens, self.block_tokens)

    def kv_stored_bytes(self, context: int, *, evict_windows: bool = False, step_tokens: int = 0) -> int:
        """Bytes of K and V held for one request of `context` tokens, exact tokens, no block rounding.

        With `evict_windows` a layer with a window or chunk holds at most that many tokens, and beside them the
        `step_tokens` that a step writes before older ones may go (0 where an engine does not need them).
        """
        if not evict_windows:
            return context * self.bytes_per_token
        return sum(
            min(context, layer.bound + step_tokens if layer.bound else context) * layer.bytes_per_token(self.kv_type)
            for layer in self.layers
        )

    def request_bytes(self, context: int, *, evict_windows: bool = False) -> int:
        """All that one request of `context` tokens holds: K and V, index keys and states."""
        kept = self.kv_stored_bytes(context, evict_windows=evict_windows)
        return kept + context * self.index_bytes_per_token + self.state_bytes_per_request

    def kv_read_bytes(self, layer: int, context: int) -> int:
        """Bytes that attention of one query position at the end of `context` tokens reads in one layer."""
        kv = self.layers[layer]
        visible = (context - 1) % kv.chunk + 1 if kv.chunk else min(context, kv.window or context)
        return visible * self.layer_bytes_per_token(layer)
