"""How an engine divides a device's memory and a step's work, as switches. kvwise's own settings are the defaults.

Another engine is another Policy (presets.py). Knows no model and no device.
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
    """Memory of a device:

    memory_fraction: of what programs may fill, how much the engine takes; fraction_of_free: of what runtime and
    collectives leave. beside: rows that lie in what the fraction leaves. pool_fraction: of what is free beside all
    other rows, how much K, V and states may take. reserve: kept free, the larger of fraction and bytes.
    runtime_bytes: the runtime on a device of its own (not on this machine's CPU). graph_bytes: recorded steps.
    workspace_bytes: of libraries. collective_bytes: buffers of several devices. embedding_on_host: tables that are only
    looked up are not on it.

    K and V: block_tokens: held in whole blocks of this many tokens; 1: exact. evict_windows: layers with a window or
    chunk hold that much and, with keep_step_tokens, the tokens of a step beside it, instead of the whole context.
    straddle_blocks: blocks more than a window fills, for it begins and ends inside one.

    A step: engine: whose step times (one of ENGINES); "": the default's, with steps of its own size. step_tokens: most
    tokens of a step; max_requests: most requests. full_step: activations are held for such a step even where what is
    asked about is less. arena_bytes: activations and logits as an engine's log has them, None: by lifetimes.
    activation_bytes, logits_bytes: of an element. logits_rows: None: one for each request.

    sources: where a figure is from, by its field.
    """

    name: str = "kvwise"
    engine: str = ""
    memory_fraction: float = 1.0
    fraction_of_free: bool = False
    beside: tuple[str, ...] = ()
    pool_fraction: float = 1.0
    reserve_fraction: float = RESIDUAL_FRACTION
    reserve_bytes: int = RESIDUAL_BYTES
    runtime_bytes: int = 555 * MiB
    graph_bytes: int = 0
    workspace_bytes: int = 0
    collective_bytes: int = 392 * MiB
    embedding_on_host: bool = False
    block_tokens: int = BLOCK_TOKENS
    evict_windows: bool = False
    keep_step_tokens: bool = True
    straddle_blocks: int = 0
    step_tokens: int = 512
    max_requests: int = 256
    full_step: bool = False
    arena_bytes: int | None = None
    activation_bytes: int = 4
    logits_bytes: int = 4
    logits_rows: int | None = None
    sources: Mapping[str, str] = field(default_factory=lambda: dict(_SOURCES))

    def held_bytes(self, kv: KVCacheSpec, context: int) -> int:
        """Bytes of K, V, index keys and states that one request of `context` tokens holds."""
        held = sum(self.held_tokens(layer.bound, context) * kv.layer_bytes_per_token(i)
                   for i, layer in enumerate(kv.layers))  # fmt: skip
        indexed = align_up(context, self.block_tokens) * kv.index_bytes_per_token
        return held + indexed + kv.state_bytes_per_request

    def held_tokens(self, bound: int | None, context: int) -> int:
        """Of a layer whose window or chunk is `bound`."""
        held = align_up(context, self.block_tokens)
        if self.evict_windows and bound is not None:
            window = bound + (self.step_tokens if self.keep_step_tokens else 0)
            held = min(held, align_up(window, self.block_tokens) + self.straddle_blocks * self.block_tokens)
        return held

    def budget(self, usable_bytes: int, rows: Mapping[str, int]) -> int:
        """What `rows` may sum to on a device of which programs may fill `usable_bytes`."""
        taken = rows["runtime"] + rows["collectives"] if self.fraction_of_free else 0
        share = taken + int(self.memory_fraction * max(0, usable_bytes - taken))
        budget = min(usable_bytes, share + sum(rows[name] for name in self.beside))
        others = sum(rows.values()) - rows["kv_pool"] - rows["states"]
        return min(budget, others + int(self.pool_fraction * max(0, budget - others)))

    def reserve(self, total_bytes: int) -> int:
        """Kept free beside `total_bytes`."""
        return max(int(self.reserve_fraction * total_bytes), self.reserve_bytes)


KVWISE: Final = Policy()
