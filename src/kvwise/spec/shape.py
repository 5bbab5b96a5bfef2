"""The sizes of a step and their bounds, without its contents: all that cost, price and the memory plan need."""

from __future__ import annotations

from kvwise.frozen import dataclass


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What every buffer is sized by. No step ever exceeds any of these.

    max_tokens: T, tokens computed in one step; max_logits_rows: R; max_requests: B; max_context: tokens of one
    request in the cache.
    """

    max_tokens: int
    max_logits_rows: int
    max_requests: int
    max_context: int


@dataclass(frozen=True, slots=True)
class StepShape:
    """One step: `queries[i]` tokens of request i are computed, ending at `contexts[i]` tokens in its cache."""

    queries: tuple[int, ...]
    contexts: tuple[int, ...]
    num_logits_rows: int

    @property
    def num_tokens(self) -> int:
        return sum(self.queries)

    @classmethod
    def prefill(cls, num_tokens: int, num_cached_tokens: int = 0) -> StepShape:
        return cls((num_tokens,), (num_cached_tokens + num_tokens,), 1)

    @classmethod
    def decode(cls, context: int, batch: int = 1) -> StepShape:
        """`batch` requests, each computing the token at position context - 1."""
        return cls((1,) * batch, (context,) * batch, batch)
