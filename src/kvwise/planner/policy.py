"""How an engine divides a device's memory and a step's work, as switches. kvwise's own settings are the defaults.

Another engine is another Policy: presets are rows of a table, not code. Knows no model and no device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvwise.ledger.rows import RESIDUAL_BYTES, RESIDUAL_FRACTION
from kvwise.spec.kv import BLOCK_TOKENS, KVCacheSpec
from kvwise.units import MiB, align_up

_SOURCES: Final[Mapping[str, str]] = {
    "runtime_bytes": "a context with nothing in it: 107 MiB on RTX 4060 Ti (34 SMs), 256 MiB on RTX 3090 (82), 555 MiB "
    "on RTX PRO 6000 (188), the largest of them taken (ggml-org/llama.cpp#23604, invoke-ai/InvokeAI#9413)",
    "collective_bytes": "NCCL's buffers among 4 or 8 devices: aiconfigurator@095f58a, systems/*.yaml, nccl_mem",
    "reserve_fraction": "as large as the ledger lets the residual be",
}


@dataclass(frozen=True, slots=True)
class Policy:
    """block_tokens: K and V are held in whole blocks of this many tokens; 1: exact.

    evict_windows: layers with a window or chunk hold that much and, with keep_step_tokens, the tokens of a step beside
    it, instead of the whole context. memory_fraction: of what programs may fill, how much the engine takes.
    runtime_bytes: the runtime on a device of its own (not on this machine's CPU). graph_bytes: recorded steps.
    collective_bytes: buffers of several devices. activation_bytes, logits_bytes: of an element. logits_rows: None: one
    for each request. step_tokens: most tokens of a step; chunk_tokens: of one request in it, None: all of them.
    reserve: kept free, the larger of fraction and bytes. sources: where a figure is from, by its field.
    """

    name: str = "kvwise"
    block_tokens: int = BLOCK_TOKENS
    evict_windows: bool = False
    keep_step_tokens: bool = True
    memory_fraction: float = 1.0
    runtime_bytes: int = 555 * MiB
    graph_bytes: int = 0
    collective_bytes: int = 392 * MiB
    activation_bytes: int = 4
    logits_bytes: int = 4
    logits_rows: int | None = None
    step_tokens: int = 512
    chunk_tokens: int | None = None
    reserve_fraction: float = RESIDUAL_FRACTION
    reserve_bytes: int = RESIDUAL_BYTES
    sources: Mapping[str, str] = field(default_factory=lambda: dict(_SOURCES))

    def held_bytes(self, kv: KVCacheSpec, context: int) -> int:
        """Bytes of K, V, index keys and states that one request of `context` tokens holds."""
        held = sum(self.held_tokens(layer.bound, context) * kv.layer_bytes_per_token(i)
                   for i, layer in enumerate(kv.layers))  # fmt: skip
        indexed = align_up(context, self.block_tokens) * kv.index_bytes_per_token
        return held + indexed + kv.state_bytes_per_request

    def held_tokens(self, bound: int | None, context: int) -> int:
        """Of a layer whose window or chunk is `bound`."""
        held = context
        if self.evict_windows and bound is not None:
            held = min(context, bound + (self.step_tokens if self.keep_step_tokens else 0))
        return align_up(held, self.block_tokens)

    def reserve(self, total_bytes: int) -> int:
        """Kept free beside `total_bytes`."""
        return max(int(self.reserve_fraction * total_bytes), self.reserve_bytes)


KVWISE: Final = Policy()
