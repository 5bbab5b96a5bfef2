"""The loop: plan, reserve, execute, then commit or abandon. The only place where a step happens.

One step, as the pieces below carry it out:
  1. the policy plans the step's tokens and names whom to preempt; those give up their blocks and wait again;
  2. new requests are admitted with the cached prefix that the plan found;
  3. slots are reserved for every scheduled token, then the executor computes the batch;
  4. a token is drawn for each request whose known tokens are all computed, each reservation is committed, and
     requests that are finished give up their blocks. If computing or drawing fails, every reservation is abandoned.
A token that was just drawn has no K and V yet: the next step computes it. So a stop token never enters the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvwise.engine.admission import Room, check_fits, check_prompt_ids, check_some_may_be_drawn
from kvwise.engine.batch import Chunk, build_batch
from kvwise.engine.executor import Executor
from kvwise.engine.queue import RequestQueue
from kvwise.engine.report import StepPart, StepReport
from kvwise.engine.sampler import sample
from kvwise.engine.state import MakeDecoder, RequestOutput, RequestState, TakePromptLogits
from kvwise.errors import UsageError
from kvwise.kvcache import KVCache, Reservation, check_integrity
from kvwise.scheduler.step_plan import ScheduledRequest, StepPlan
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.request import Request
from kvwise.spec.shape import StepLimits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Engine:
    """Serves requests over one executor and one KV pool. Not thread-safe."""

    def __init__(
        self,
        executor: Executor,
        kv: KVCacheSpec,
        num_blocks: int,
        limits: StepLimits,
        *,
        vocab: int,
        stop_ids: frozenset[int] = frozenset(),
        make_decoder: MakeDecoder | None = None,
        prefix_cache: bool = True,
        keep_kv: bool = True,
        max_positions: int | None = None,
        check_every_step: bool = False,
    ) -> None:
        """`stop_ids` is the model's own set. `vocab`: ids below it have a meaning; a padded head has more rows.
        `max_positions`: the model's, so that no refusal advises a context beyond it.

        Without `keep_kv` every token's step computes all positions anew, which shows what the cache is worth.
        `check_every_step` proves the cache's invariants after each step.
        """
        self.cache = KVCache(num_blocks, kv.block_tokens)
        self._queue: RequestQueue[RequestState] = RequestQueue(self.cache, limits)
        self.limits = limits
        self.outputs: dict[str, RequestOutput] = {}
        self._executor, self._vocab = executor, vocab
        capacity = min(limits.max_context, num_blocks * kv.block_tokens)
        self._room = Room(capacity, kv.bytes_per_token, max_positions)
        self._stop_ids, self._make_decoder = stop_ids, make_decoder
        self._prefix_cache, self._keep_kv, self._check_every_step = prefix_cache, keep_kv, check_every_step
        self._ids_in_use: set[str] = set()
        self._num_added = 0
        self._num_steps = 0

    @property
    def has_work(self) -> bool:
        return self._queue.has_work

    def add_request(self, request: Request, take_prompt_logits: TakePromptLogits | None = None) -> None:
        """Queue a request. Raises UsageError for one that is malformed, DoesNotFit for one that never can fit.

        `take_prompt_logits` is handed the logits of every prompt position, in order, each once, in slices of at most
        limits.max_logits_rows; then no position's computation is saved by the prefix cache.
        """
        self.check_request(request)
        state = RequestState(
            request,
            self._num_added,
            self._executor.now_s(),
            self._make_decoder(request.prompt_ids) if self._make_decoder is not None else None,
            take_prompt_logits,
        )
        if not self._prefix_cache:
            state.salt = f"{state.salt}\0{self._num_added}"
        self._num_added += 1
        self._queue.add(state)
        self._ids_in_use.add(request.request_id)

    def check_request(self, request: Request) -> None:
        """Raise what `add_request` would. Changes nothing."""
        if request.request_id in self._ids_in_use:
            raise UsageError(f"request id {request.request_id!r} is in use", action="choose another")
        check_prompt_ids(request, self._vocab)
        if request.sampling.stop and self._make_decoder is None:
            raise UsageError("stop strings need a tokenizer", action="give stop_ids instead")
        check_some_may_be_drawn(request, self._vocab, self._stop_ids)
        check_fits(len(request.prompt_ids), request.sampling.max_tokens, self._room)

    def abort(self, request_id: str) -> RequestOutput:
        """End a request now and give up its blocks. Raises UsageError for one that is not here."""
        queue = self._queue
        state = queue.running.get(request_id) or next((s for s in queue.waiting if s.request_id == request_id), None)
        if state is None:
            raise UsageError(f"request {request_id!r} is not running")
        queue.end(state)
        state.finish_reason = "abort"
        return self._finish(state)

    def abort_all(self) -> None:
        """End every request now; their outputs are in `outputs`."""
        for request_id in list(self._ids_in_use):
            self.abort(request_id)

    def run(self) -> Iterator[StepReport]:
        """Step until nothing is left to do."""
        while self.has_work:
            yield self.step()

    def step(self) -> StepReport:
        """Compute one step. Raises UsageError when there is nothing to do, BackendError when computing failed."""
        if not self.has_work:
            raise UsageError("the engine has no request to serve", action="add one first")
        step = self._queue.open_step()
        plan, reservations = step
        chunks = [
            Chunk(r.request_id, r.start, r.token_ids, s.num_logits_rows)
            for r, s in zip(reservations, plan.scheduled, strict=True)
        ]
        start_s = self._executor.now_s()
        try:
            logits = self._executor.execute(build_batch(chunks, self.cache))
            now_s = self._executor.now_s()
            drawn = self._draw(plan, reservations, logits)
        except BaseException:
            self._queue.abandon(step)
            raise
        try:
            parts = self._commit(plan, reservations, logits, drawn, now_s)
        except BaseException:
            self._compute_anew(reservations)
            raise
        if self._check_every_step:
            check_integrity(self.cache)
        self._num_steps += 1
        return StepReport(self._num_steps - 1, step.shape, parts, plan.preempted, now_s - start_s)

    # The pieces of a step

    def _draw(
        self, plan: StepPlan, reservations: Sequence[Reservation], logits: NDArray[np.float32]
    ) -> list[int | None]:
        """A token for each request whose known tokens are all computed, else None. Changes nothing."""
        drawn: list[int | None] = []
        end = 0
        for entry, reservation in zip(plan.scheduled, reservations, strict=True):
            state = self._queue.running[entry.request_id]
            end += entry.num_logits_rows
            if reservation.stop < len(state.token_ids):
                drawn.append(None)
                continue
            banned = state.banned_ids(self._stop_ids)
            row = logits[end - 1, : self._vocab]
            drawn.append(sample(row, state.request.sampling, state.seed, state.num_output_tokens, banned))
        return drawn

    def _commit(
        self,
        plan: StepPlan,
        reservations: Sequence[Reservation],
        logits: NDArray[np.float32],
        drawn: list[int | None],
        now_s: float,
    ) -> tuple[StepPart, ...]:
        parts: list[StepPart] = []
        row = 0
        for entry, reservation, token_id in zip(plan.scheduled, reservations, drawn, strict=True):
            state = self._queue.running[entry.request_id]
            self.cache.commit(reservation)
            state.num_computed_tokens = reservation.stop
            rows = logits[row : row + entry.num_logits_rows]
            row += entry.num_logits_rows
            parts.append(self._advance(state, entry, reservation, rows, token_id, now_s))
            if state.finish_reason is not None:
                self._end(state)
            elif not self._keep_kv and parts[-1].token_id is not None:
                state.salt += "\0"  # no later step finds what this one computed
                self._queue.wait_again(state)
        return tuple(parts)

    def _compute_anew(self, reservations: Sequence[Reservation]) -> None:
        """After a commit that was interrupted half-way: the step's requests keep their tokens and wait again."""
        for reservation in reservations:
            state = self._queue.running.get(reservation.request_id)
            if state is None:
                continue
            if self.cache.requests[state.request_id].reservation is reservation:
                self.cache.abandon(reservation)
            if state.finish_reason is None:
                self._queue.wait_again(state)
            else:
                self._end(state)

    def _advance(
        self,
        state: RequestState,
        entry: ScheduledRequest,
        reservation: Reservation,
        rows: NDArray[np.float32],
        token_id: int | None,
        now_s: float,
    ) -> StepPart:
        """Hand prompt logits on; take the token that was drawn, if any."""
        if state.wants_prompt_logits:
            state.hand_on_prompt_logits(reservation.start, rows[:, : self._vocab])
        text = "" if token_id is None else state.append(token_id, now_s, self._stop_ids)
        return StepPart(
            request_id=state.request_id,
            is_prefill=entry.kind == "prefill",
            first_position=reservation.start,
            num_tokens=len(reservation.token_ids),
            token_id=token_id,
            cached_tokens=reservation.stop,
            text=text,
            finish_reason=state.finish_reason,
        )

    def _end(self, state: RequestState) -> None:
        self._queue.end(state)
        self._finish(state)

    def _finish(self, state: RequestState) -> RequestOutput:
        self._ids_in_use.discard(state.request_id)
        output = self.outputs[state.request_id] = RequestOutput.of(state)
        return output
