"""Whether a request can be served at all: checks of its ids, its stops and its size, before any work. Pure.

Knows limits and sizes as numbers; no cache, no queue, no clock.
"""

from __future__ import annotations

from kvwise.errors import DoesNotFit, UsageError
from kvwise.frozen import dataclass
from kvwise.spec.request import Request
from kvwise.units import format_bytes


@dataclass(frozen=True, slots=True)
class Room:
    """capacity_tokens: what one request may hold in the cache. max_positions: what the model could, None if unknown."""

    capacity_tokens: int
    kv_bytes_per_token: int
    max_positions: int | None = None


def check_text_can_fit(num_tokens_at_least: int, max_positions: int) -> None:
    """Raise DoesNotFit for a text that can't fit however it is cut into tokens; cutting it would take long."""
    if num_tokens_at_least > max_positions:
        raise DoesNotFit(
            f"the prompt has at least {num_tokens_at_least} tokens",
            expected=f"at most the model's {max_positions} positions",
            action="give a shorter prompt",
        )


def check_prompt_ids(request: Request, vocab: int) -> None:
    """Raise UsageError unless there are ids, all of them below `vocab`."""
    if not request.prompt_ids:
        raise UsageError("the prompt has no tokens", expected="at least 1")
    wrong = next((i for i in request.prompt_ids if not 0 <= i < vocab), None)
    if wrong is not None:
        raise UsageError(f"token id {wrong} in the prompt", expected=f"0 to {vocab - 1}")


def check_some_may_be_drawn(request: Request, vocab: int, model_stop_ids: frozenset[int]) -> None:
    """Until there are min_tokens, no stop token may be drawn; raise UsageError if there is no other."""
    sampling = request.sampling
    if not sampling.min_tokens:
        return
    banned = sampling.stop_ids if sampling.ignore_eos else sampling.stop_ids | model_stop_ids
    if sum(0 <= i < vocab for i in banned) >= vocab:
        raise UsageError(f"min_tokens is {sampling.min_tokens}, but all {vocab} tokens stop", action="lower min_tokens")


def check_fits(num_prompt_tokens: int, max_tokens: int, room: Room) -> None:
    """Raise DoesNotFit, with the arithmetic and what would fit, for a request that never can.

    The last output token never enters the cache, so prompt + output - 1 tokens are held at most.
    """
    held, capacity = num_prompt_tokens + max_tokens - 1, room.capacity_tokens
    if held <= capacity:
        return
    shorter = capacity - num_prompt_tokens + 1
    fixes = [f"max_tokens of at most {shorter}"] if shorter >= 1 else []
    fixes += [f"a prompt of at most {capacity - max_tokens + 1} tokens"] if max_tokens <= capacity else []
    if room.max_positions is None or held <= room.max_positions:
        fixes += [f"a context of {held} tokens ({format_bytes(held * room.kv_bytes_per_token)} of KV)"]
    raise DoesNotFit(
        f"the request can hold {num_prompt_tokens} + {max_tokens} - 1 = {held} tokens in the cache, which has room for "
        f"{capacity} ({format_bytes(capacity * room.kv_bytes_per_token)})",
        action=f"what would fit: {'; or '.join(fixes)}",
    )
