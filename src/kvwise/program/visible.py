"""What the queries of a step see: cells that attention computes, and positions that it reads at least once.

A step computes the last `queries` positions of a request of `context` tokens. Closed forms; pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvwise.frozen import dataclass


def visible_positions(queries: int, context: int, window: int | None) -> int:
    """Σ over the last `queries` positions p < context of min(p + 1, window): the cells attention computes."""

    def triangle(n: int) -> int:
        return n * (n + 1) // 2

    if window is None or window >= context:
        return triangle(context) - triangle(context - queries)
    below = max(0, min(window, context) - (context - queries))  # queries that still see everything before them
    first = context - queries
    return triangle(first + below) - triangle(first) + (queries - below) * window


def visible_span(queries: int, context: int, window: int | None) -> int:
    """Positions that at least one of the last `queries` queries sees: each is read once."""
    return context if window is None else min(context, queries + window - 1)


def chunk_positions(queries: int, context: int, chunk: int) -> int:
    """Σ over the last `queries` positions p < context of p mod chunk + 1."""

    def up_to(n: int) -> int:
        rest = n % chunk
        return n // chunk * (chunk * (chunk + 1) // 2) + rest * (rest + 1) // 2

    return up_to(context) - up_to(context - queries)


def chunk_span(queries: int, context: int, chunk: int) -> int:
    """Positions that at least one of the last `queries` queries sees: from the start of the first one's chunk."""
    return context - (context - queries) // chunk * chunk


@dataclass(frozen=True, slots=True)
class Visible:
    """What queries see: a window, their chunk, or all before them."""

    window: int | None
    chunk: int | None = None

    def cells(self, queries: int, context: int) -> int:
        if self.chunk is not None:
            return chunk_positions(queries, context, self.chunk)
        return visible_positions(queries, context, self.window)

    def span(self, queries: int, context: int) -> int:
        if self.chunk is not None:
            return chunk_span(queries, context, self.chunk) if queries else 0
        return visible_span(queries, context, self.window)

    def totals(self, queries: Sequence[int], contexts: Sequence[int]) -> tuple[int, int]:
        """(cells, positions read) of requests that compute queries[i] tokens, ending at contexts[i]."""
        if self.chunk is None and max(queries, default=0) == min(queries, default=0) == 1:
            seen = sum(contexts) if self.window is None else sum(min(n, self.window) for n in contexts)
            return seen, seen
        pairs = list(zip(queries, contexts, strict=True))
        return sum(self.cells(q, n) for q, n in pairs), sum(self.span(q, n) for q, n in pairs)
