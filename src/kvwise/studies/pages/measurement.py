"""Runs every way of giving out a pool on the same lengths, and times the bookkeeping by the size of a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvwise.errors import UsageError
from kvwise.planner.simulation.lengths import AZURE_CONVERSATIONS
from kvwise.planner.simulation.traces import read_trace
from kvwise.spec.kv import BLOCK_TOKENS, KV_TYPES, KVCacheSpec, LayerKV
from kvwise.studies.pages.by_engine import bookkeeping_s, hold_by_engine
from kvwise.studies.pages.policies import (
    Lengths,
    Use,
    by_maximum,
    by_oracle,
    by_power_of_two,
    hold_in_blocks,
    hold_in_one_piece,
    kept_tokens,
)
from kvwise.studies.study import Ask, Results


@dataclass(frozen=True, slots=True)
class Sizes:
    """The pool is 16 GiB of K and V of Llama 3.1 8B; no conversation of the trace is longer than `longest`."""

    pool_tokens: int = 2**17
    longest: int = 2**14
    requests: int = 4000
    engine_requests: int = 600
    block_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    context: int = 2048
    steps: int = 512


def measure(ask: Ask, sizes: Sizes = Sizes()) -> Results:
    lengths, source = _lengths(ask.trace, sizes)
    rows: list[dict[str, Any]] = []
    reserving = {"the maximum": by_maximum(sizes.longest), "a power of two": by_power_of_two, "an oracle": by_oracle}
    for name, reserve in reserving.items():
        ask.say(f"reserving by {name}")
        predicted = sizes.pool_tokens / _weighted_mean(lengths, reserve)
        use = hold_in_one_piece(lengths, sizes.pool_tokens, reserve)
        rows.append(_row("reserve", name, None, predicted, use))
    for size in sizes.block_sizes:
        ask.say(f"blocks of {size} tokens")
        use = hold_in_blocks(lengths, sizes.pool_tokens, size)
        rows.append(_row("blocks", f"{size}", size, _predicted_requests(lengths, sizes.pool_tokens, size), use))
    ask.say(f"the engine's scheduler and cache, {sizes.engine_requests} requests")
    few = lengths[: sizes.engine_requests]
    by_engine = hold_by_engine(few, sizes.pool_tokens, BLOCK_TOKENS)
    ask.say("bookkeeping by block size")
    bookkeeping = [[size, bookkeeping_s(sizes.context, size, sizes.steps)] for size in sizes.block_sizes]
    kv = KVCacheSpec((LayerKV(8, 128, 128, None),) * 32, KV_TYPES["f16"])
    return {
        "lengths": source,
        "sizes": asdict(sizes),
        "requests": len(lengths),
        "mean_prompt_tokens": sum(p for p, _ in lengths) / len(lengths),
        "mean_output_tokens": sum(o for _, o in lengths) / len(lengths),
        "pool_bytes": sizes.pool_tokens * kv.bytes_per_token,
        "policies": rows,
        "fitted": _fitted(ask.trace, sizes),
        "engine": _row(
            "engine", f"{BLOCK_TOKENS}", BLOCK_TOKENS, _predicted_requests(few, sizes.pool_tokens), by_engine
        ),
        "bookkeeping_s": bookkeeping,
    }


def _row(kind: str, name: str, block_tokens: int | None, predicted: float, use: Use) -> dict[str, Any]:
    """`predicted_requests` is from the lengths alone: the pool over what a request holds on average."""
    return {"kind": kind, "name": name, "block_tokens": block_tokens, "predicted_requests": predicted, **asdict(use)}


def _weighted_mean(lengths: Lengths, slots: Callable[[int, int], float]) -> float:
    """Of what requests hold, each weighted by the steps it runs: what is held at a moment, not what is asked for."""
    return sum(output * slots(prompt, output) for prompt, output in lengths) / sum(output for _, output in lengths)


def _predicted_requests(lengths: Lengths, pool_tokens: int, block_tokens: int = BLOCK_TOKENS) -> float:
    """A request holds its prompt, half its output, half a block that is not full, and a block to spare."""
    tokens = _weighted_mean(lengths, lambda prompt, output: (prompt + kept_tokens(prompt, output)) / 2)
    return pool_tokens / (tokens + (block_tokens - 1) / 2 + block_tokens)


def _fitted(trace: Path | None, sizes: Sizes) -> float | None:
    """Beside a trace: requests held with lengths drawn from the distribution that stands for one."""
    if trace is None:
        return None
    return hold_in_blocks(AZURE_CONVERSATIONS.sample(sizes.requests), sizes.pool_tokens, BLOCK_TOKENS).requests


def _lengths(trace: Path | None, sizes: Sizes) -> tuple[Lengths, str]:
    if trace is None:
        lengths: Lengths = AZURE_CONVERSATIONS.sample(sizes.requests)
        source = AZURE_CONVERSATIONS.source
    else:
        load = read_trace(trace)
        every = max(1, len(load.sizes) // sizes.requests)
        lengths = [(size.prompt_tokens, size.output_tokens) for size in load.sizes[::every][: sizes.requests]]
        source = load.source
    too_long = next((pair for pair in lengths if kept_tokens(*pair) > sizes.longest), None)
    if too_long is not None:
        raise UsageError(
            f"{source} has a request of {too_long[0]} + {too_long[1]} tokens", expected=f"at most {sizes.longest}"
        )
    return lengths, source
