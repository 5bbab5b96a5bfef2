"""What the engine knows of one request while it runs: tokens so far, text so far, times, and why it ended."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, Protocol

from kvwise.engine.stops import StopMatcher
from kvwise.frozen import dataclass
from kvwise.spec.request import Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "abort"]


class Decoder(Protocol):
    """Token ids to text, incrementally. tokenizer.StreamDecoder is one."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


MakeDecoder = Callable[[Sequence[int]], Decoder]  # given the prompt's ids, which may end inside a character
TakePromptLogits = Callable[[int, "NDArray[np.float32]"], None]
"""Called with the position of the first row and the rows [n, vocab], which are valid until it returns."""


class RequestState:
    """Mutable, owned by the engine; a policy plans it as scheduler.Schedulable.

    `token_ids` = prompt + output; output token i is drawn with (seed, i). `num_computed_tokens` is what the cache
    holds of it, 0 while it waits.
    """

    def __init__(
        self,
        request: Request,
        arrival_order: int,
        arrival_s: float,
        decoder: Decoder | None,
        take_prompt_logits: TakePromptLogits | None = None,
    ) -> None:
        self.request = request
        self.arrival_order = arrival_order
        self.num_computed_tokens = 0
        self.salt = request.salt
        self.token_ids: list[int] = list(request.prompt_ids)
        self.seed = request.sampling.seed if request.sampling.seed is not None else secrets.randbits(64)
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.num_cached_tokens = 0
        self.arrival_s = arrival_s
        self.token_times_s: list[float] = []
        self._decoder = decoder
        self._take_prompt_logits = take_prompt_logits
        self._num_taken_rows = 0
        self._stops = StopMatcher(request.sampling.stop)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def wants_prompt_logits(self) -> bool:
        return self._take_prompt_logits is not None and self._num_taken_rows < self.num_prompt_tokens

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def admit(self, num_cached_tokens: int) -> None:
        """It runs from now on. The cached tokens of its first admission are what its user hears of."""
        self.num_computed_tokens = num_cached_tokens
        if not self.num_output_tokens:
            self.num_cached_tokens = num_cached_tokens

    def lose_blocks(self) -> None:
        self.num_computed_tokens = 0

    def hand_on_prompt_logits(self, start: int, rows: NDArray[np.float32]) -> None:
        """Give the taker what it has not had of `rows`, which are of positions start, start + 1, ...

        A request that was preempted computes its prompt anew, to the same bits: each position is handed on once.
        """
        first = self._num_taken_rows
        new = rows[first - start : self.num_prompt_tokens - start]
        if self._take_prompt_logits is not None and len(new):
            self._take_prompt_logits(first, new)
            self._num_taken_rows += len(new)

    def append(self, token_id: int, now_s: float, model_stop_ids: frozenset[int]) -> str:
        """Take the next output token; returns text that can be shown now and sets `finish_reason` at the end."""
        sampling = self.request.sampling
        self.token_ids.append(token_id)
        self.token_times_s.append(now_s)
        if token_id in self.stop_ids(model_stop_ids):
            self.finish_reason = "stop"
            return self._show(self._rest())
        piece = self._decoder.push(token_id) if self._decoder is not None else ""
        early = self.num_output_tokens < sampling.min_tokens
        shown = self._stops.let_pass(piece) if early else self._stops.push(piece)
        if self.num_output_tokens >= sampling.max_tokens and self._stops.matched is None:
            self.finish_reason = "length"
            shown += self._rest()
        if self._stops.matched is not None:
            self.finish_reason = "stop"
        return self._show(shown)

    def banned_ids(self, model_stop_ids: frozenset[int]) -> frozenset[int]:
        """Ids that may not be drawn next: while there are fewer than min_tokens, those that would stop."""
        early = self.num_output_tokens < self.request.sampling.min_tokens
        return self.stop_ids(model_stop_ids) if early else frozenset()

    def stop_ids(self, model_stop_ids: frozenset[int]) -> frozenset[int]:
        own = self.request.sampling.stop_ids
        return own if self.request.sampling.ignore_eos else own | model_stop_ids

    def _rest(self) -> str:
        """Text still inside the decoder and the matcher at the end of the stream."""
        tail = self._decoder.flush() if self._decoder is not None else ""
        shown = self._stops.push(tail)
        return shown + self._stops.flush()

    def _show(self, piece: str) -> str:
        self.text += piece
        return piece


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What a request came to. Times in seconds from arrival; tpot_s is None for a single token.

    tpot_s = (e2e_s - ttft_s) / (N - 1); itl_s are the N - 1 single intervals.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    num_cached_tokens: int
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    itl_s: tuple[float, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, state: RequestState) -> RequestOutput:
        times = state.token_times_s
        first, last = (times[0], times[-1]) if times else (None, None)
        return cls(
            request_id=state.request_id,
            prompt_ids=state.request.prompt_ids,
            ids=tuple(state.output_ids),
            text=state.text,
            finish_reason=state.finish_reason,
            num_cached_tokens=state.num_cached_tokens,
            ttft_s=None if first is None else first - state.arrival_s,
            tpot_s=(last - first) / (len(times) - 1) if first is not None and last is not None and times[1:] else None,
            e2e_s=None if last is None else last - state.arrival_s,
            itl_s=tuple(b - a for a, b in pairwise(times)),
        )
