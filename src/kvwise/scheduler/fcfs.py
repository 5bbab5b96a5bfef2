"""First come, first served, decodes first. Pure; holds nothing between steps.

Running requests that decode get their token first, then running prefills get chunks of what is left of the budget,
both in order of arrival. A request without room for one token takes the blocks of requests that arrived after it, the
latest first, and only if that gives it room; else it waits and keeps what it has. Then waiting requests are admitted
in order of arrival until the first that does not fit: all its known tokens must fit beside what running prefills
still need, with one block to spare for each running request, and nobody is admitted in a step that preempts or in
which a running request lacks blocks.

So the oldest request always advances, a request is preempted only for an older one, and nobody waits for ever, as
long as each request alone fits the pool.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvwise.kvcache import CachedPrefix
from kvwise.scheduler.step_plan import (
    BlockedBy,
    BlockedRequest,
    CacheView,
    Kind,
    Schedulable,
    ScheduledRequest,
    StepPlan,
)
from kvwise.spec.shape import StepLimits
from kvwise.units import ceil_div


def plan_step(
    running: Iterable[Schedulable], waiting: Iterable[Schedulable], cache: CacheView, limits: StepLimits
) -> StepPlan:
    """This step's tokens, and whom to preempt for them. Pure.

    `running` in any order, `waiting` in order of arrival (only the first few are looked at); each has a token to
    compute and no open reservation. `limits` have passed `check_limits`; max_context is not looked at. A plan that
    is carried out in StepPlan's order never runs out of blocks.
    """
    draft = _Draft(running, cache, limits)
    draft.plan_running()
    draft.plan_admissions(waiting)
    return draft.finish()


def plan_prompts_first(
    running: Iterable[Schedulable], waiting: Iterable[Schedulable], cache: CacheView, limits: StepLimits
) -> StepPlan:
    """Likewise, but as long as there are prompts to compute for which there is room, decodes wait for them.

    First tokens come sooner, later ones with longer gaps; as many requests as may run can hold a decode up.
    """
    running = list(running)
    draft = _Draft(running, cache, limits)
    draft.plan_prompts()
    draft.plan_admissions(waiting)
    if not draft.scheduled:
        return plan_step(running, waiting, cache, limits)
    draft.block_rest("prompts")
    return draft.finish()


def _is_decode(request: Schedulable, num_computed: int) -> bool:
    """Is an output token the only one still to be computed?"""
    return num_computed >= request.num_prompt_tokens and num_computed == len(request.token_ids) - 1


class _Draft:
    """A plan in the making: what is left of the budgets, and who has been given what."""

    def __init__(self, running: Iterable[Schedulable], cache: CacheView, limits: StepLimits) -> None:
        self.cache, self.block_tokens = cache, cache.block_tokens
        self.max_requests = limits.max_requests
        self.tokens_left = limits.max_tokens
        self.rows_left = limits.max_logits_rows
        self.blocks_left = cache.num_available_blocks
        # Oldest first; preemption takes from the end, admission appends.
        self.running = sorted(running, key=lambda request: request.arrival_order)
        self.scheduled: dict[str, ScheduledRequest] = {}
        self.preempted: list[str] = []
        self.num_freed = 0  # by the preempted, their planned blocks aside; part of blocks_left
        self.blocked: dict[str, BlockedBy] = {}

    def plan_running(self) -> None:
        prefill_places: list[int] = []
        place = 0
        while place < len(self.running):  # preemption shortens it
            request = self.running[place]
            if _is_decode(request, request.num_computed_tokens):
                self._plan_one(request, place, "decode")
            else:
                prefill_places.append(place)
            place += 1
        for place in prefill_places:
            if place < len(self.running):
                self._plan_one(self.running[place], place, "prefill")

    def plan_prompts(self) -> None:
        place = 0
        while place < len(self.running):  # preemption shortens it
            request = self.running[place]
            if not _is_decode(request, request.num_computed_tokens):
                self._plan_one(request, place, "prefill")
            place += 1

    def block_rest(self, by: BlockedBy) -> None:
        """Running requests that were given nothing, and had nothing denied, wait for this."""
        for request in self.running:
            if request.request_id not in self.scheduled:
                self.blocked.setdefault(request.request_id, by)

    def plan_admissions(self, waiting: Iterable[Schedulable]) -> None:
        num_promised: int | None = None
        for request in waiting:
            by = self._closed_by()
            if by is None:
                if num_promised is None:
                    num_promised = sum(1 + self._num_blocks_to_come(request) for request in self.running)
                by, num_more_promised = self._admit(request, self.blocks_left - num_promised)
                num_promised += num_more_promised
            if by is not None:
                self.blocked[request.request_id] = by
                return

    def finish(self) -> StepPlan:
        blocked = tuple(BlockedRequest(*item) for item in self.blocked.items())
        return StepPlan(tuple(self.scheduled.values()), tuple(self.preempted), blocked)

    def _plan_one(self, request: Schedulable, place: int, kind: Kind) -> None:
        num_computed, size = request.num_computed_tokens, self.block_tokens
        chunk = self._chunk(request, len(request.token_ids) - num_computed)
        if not chunk:
            self.blocked[request.request_id] = "max_logits_rows" if self.tokens_left else "max_tokens"
            return
        num_slots = -num_computed % size  # still empty in its last block
        if not num_slots and not self.blocks_left and not self._preempt_for(place):
            self.blocked[request.request_id] = "blocks"
            return
        if chunk > num_slots:
            chunk = min(chunk, num_slots + self.blocks_left * size)
            self.blocks_left -= ceil_div(chunk - num_slots, size)
        self._schedule(request, kind, num_computed, chunk)

    def _preempt_for(self, place: int) -> bool:
        """Preempts as few as give the request at `place` a block, the latest first; False if all would not."""
        victims: list[str] = []
        num_planned = 0
        for victim in reversed(self.running[place + 1 :]):
            victims.append(victim.request_id)
            entry = self.scheduled.get(victim.request_id)
            if entry is not None:
                num_planned += self._num_new_blocks(victim, entry.num_scheduled_tokens)
            # Together, because blocks that only they share are freed with the last of them.
            num_freed = self.cache.count_freed_by([*self.preempted, *victims])
            if num_planned + num_freed > self.num_freed:
                self.blocks_left += num_planned + num_freed - self.num_freed
                self.num_freed = num_freed
                self._preempt(victims)
                return True
        return False

    def _preempt(self, victims: list[str]) -> None:
        del self.running[-len(victims) :]
        self.preempted += victims
        for request_id in victims:
            self.blocked.pop(request_id, None)
            entry = self.scheduled.pop(request_id, None)
            if entry is not None:
                self.tokens_left += entry.num_scheduled_tokens
                self.rows_left += entry.num_logits_rows

    def _closed_by(self) -> BlockedBy | None:
        """What keeps anybody from being admitted, blocks aside."""
        if self.preempted:
            return "preemption"
        if len(self.running) >= self.max_requests:
            return "max_requests"
        return None if self.tokens_left else "max_tokens"

    def _admit(self, request: Schedulable, num_spare: int) -> tuple[BlockedBy | None, int]:
        """Admits `request`, or says what stops it; and how many blocks beyond this step's it is promised."""
        if num_spare < 1:  # also whenever a running request lacks a block
            return "blocks", 0
        prefix = self._find_prefix(request)
        num_computed, num_tokens = prefix.num_cached_tokens, len(request.token_ids)
        num_idle, num_cached = self.cache.count_idle(prefix), len(prefix.blocks)
        num_total = ceil_div(num_tokens, self.block_tokens)
        if num_total - num_cached + num_idle > num_spare:
            return "blocks", 0
        chunk = self._chunk(request, num_tokens - num_computed)
        if not chunk:
            return "max_logits_rows", 0
        num_now = ceil_div(num_computed + chunk, self.block_tokens)
        self.blocks_left -= num_now - num_cached + num_idle
        self.running.append(request)
        kind: Kind = "decode" if _is_decode(request, num_computed) else "prefill"
        self._schedule(request, kind, num_computed, chunk, prefix)
        return None, 1 + num_total - num_now

    def _find_prefix(self, request: Schedulable) -> CachedPrefix:
        if request.wants_prompt_logits:
            return self.cache.empty_prefix(request.salt)
        return self.cache.match_prefix(request.token_ids, request.salt)

    def _schedule(
        self, request: Schedulable, kind: Kind, num_computed: int, chunk: int, prefix: CachedPrefix | None = None
    ) -> None:
        finishes = num_computed + chunk == len(request.token_ids)
        num_rows = chunk if request.wants_prompt_logits else int(finishes)
        self.tokens_left -= chunk
        self.rows_left -= num_rows
        self.scheduled[request.request_id] = ScheduledRequest(request.request_id, kind, chunk, num_rows, prefix)

    def _chunk(self, request: Schedulable, num_left: int) -> int:
        """As many of the `num_left` tokens as the budgets of tokens and logits rows allow."""
        chunk = num_left if num_left < self.tokens_left else self.tokens_left
        if request.wants_prompt_logits:
            return min(chunk, self.rows_left)
        # Only the last token of all needs a row; without one, stop short of it.
        return chunk if self.rows_left or chunk < num_left else chunk - 1

    def _num_new_blocks(self, request: Schedulable, num_tokens: int) -> int:
        """Blocks that a running request must be given for its next `num_tokens` tokens."""
        num_computed, size = request.num_computed_tokens, self.block_tokens
        return ceil_div(num_computed + num_tokens, size) - ceil_div(num_computed, size)

    def _num_blocks_to_come(self, request: Schedulable) -> int:
        """Blocks that its known tokens will need after this step."""
        num_left = len(request.token_ids) - request.num_computed_tokens
        entry = self.scheduled.get(request.request_id)
        num_now = entry.num_scheduled_tokens if entry is not None else 0
        return self._num_new_blocks(request, num_left) - self._num_new_blocks(request, num_now)
