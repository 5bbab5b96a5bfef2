"""What every plan has, whatever it is made of: the table of K and V, the other numbers of heads, checked questions."""

from __future__ import annotations

import operator
from typing import Final

from kvwise.errors import UsageError
from kvwise.planner.plan import Alternative, KVCell
from kvwise.spec.fields import shown
from kvwise.spec.kv import KVCacheSpec

TABLE_CONTEXTS: Final = (2048, 8192, 32768)
TABLE_BATCHES: Final = (1, 8, 32)
MAX_TOKENS: Final = 2**40
DEFAULT_OUTPUT_TOKENS: Final = 256
MAX_BYTES: Final = 2**100


def kv_table(kv: KVCacheSpec, context: int, batch: int) -> tuple[KVCell, ...]:
    contexts = sorted({*TABLE_CONTEXTS, context})
    batches = sorted({*TABLE_BATCHES, batch})
    return tuple(
        KVCell(n, b, b * kv.kv_stored_bytes(n), b * kv.kv_stored_bytes(n, evict_windows=True))
        for n in contexts
        for b in batches
    )


def alternative(name: str, kv: KVCacheSpec, parameters: int | None, context: int, batch: int) -> Alternative:
    heads = max((layer.num_kv_heads for layer in kv.layers), default=0)
    return Alternative(name, heads, parameters, kv.bytes_per_token, batch * kv.kv_stored_bytes(context))


def check_tokens(name: str, value: int) -> int:
    return check_range(name, value, MAX_TOKENS)


def split_context(context: int, output_tokens: int | None) -> tuple[int, int]:
    """(prompt tokens, output tokens) of a request of `context` tokens. Raises UsageError."""
    output = min(DEFAULT_OUTPUT_TOKENS, max(1, context - 1)) if output_tokens is None else output_tokens
    check_range("output_tokens", output, max(1, context - 1))
    return max(1, context - output), output


def check_memory_limit(value: int | None) -> int | None:
    return None if value is None else check_range("memory_limit", value, MAX_BYTES)


def check_range(name: str, value: int, high: int) -> int:
    """`value` as an integer of Python's. Raises UsageError for anything but an integer of 1 to `high`."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if not 1 <= number <= high:
        raise UsageError(f"{name} is {shown(value)}", expected=f"an integer, 1 to {high:,}")
    return number
