"""The engine's loop on a virtual clock: the same queue, scheduler and cache bookkeeping, steps that take as long as
they are priced, and tokens that nobody computes.

    requests that have come wait ─▶ open_step: plan, preempt, admit, reserve ─▶ the clock moves on by the step's price
    ─▶ commit: each request whose known tokens are all computed gets its next token; who has them all ends

A request that comes while a step runs is seen by the next one. Stretches of steps that must all be planned alike are
taken in one stride (stride.py): the same tokens at the same times. Knows no device and no model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from kvwise.engine.admission import Room, check_fits
from kvwise.engine.queue import OpenStep, RequestQueue
from kvwise.errors import BackendError, DoesNotFit
from kvwise.kvcache import KVCache
from kvwise.planner.simulation.clock import StepTimes
from kvwise.planner.simulation.load import Load
from kvwise.planner.simulation.record import Record, Refusal
from kvwise.planner.simulation.request import SimulatedRequest, first_own_ids
from kvwise.planner.simulation.stride import plan_stride, stride_growth
from kvwise.scheduler import Policy, plan_step
from kvwise.scheduler.step_plan import StepPlan
from kvwise.spec.kv import BLOCK_TOKENS
from kvwise.spec.shape import StepLimits

Progress = Callable[[int, int], None]  # (requests done, requests in all)
Observe = Callable[[OpenStep, float], None]  # (a step before it is committed, its seconds)

_MAX_STRIDE: Final = 4096  # steps; bounds what is priced in vain when a request comes early in a stride


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """The engine that is simulated, by what its decisions depend on.

    policy: strides need one that looks at nobody behind a waiting request that is blocked, as those of scheduler/ do.
    kv_bytes_per_token is for what refusals say.
    """

    num_blocks: int
    limits: StepLimits
    block_tokens: int = BLOCK_TOKENS
    prefix_cache: bool = True
    policy: Policy = plan_step
    kv_bytes_per_token: int = 0

    @property
    def room(self) -> Room:
        capacity = min(self.limits.max_context, self.num_blocks * self.block_tokens)
        return Room(capacity, self.kv_bytes_per_token)


def simulate(
    load: Load,
    setup: EngineSetup,
    times: StepTimes,
    *,
    strides: bool = True,
    progress: Progress | None = None,
    observe: Observe | None = None,
) -> Record:
    """Serve `load`; what happened to each request and in each step. The same arguments give the same record.

    Without `strides` every step is planned; `observe` sees the planned ones. Raises UsageError for limits or a load
    that can't be simulated, BackendError for a price that is no time.
    """
    return _Simulation(load, setup, times, strides=strides, progress=progress, observe=observe).run()


class _Simulation:
    def __init__(
        self,
        load: Load,
        setup: EngineSetup,
        times: StepTimes,
        *,
        strides: bool,
        progress: Progress | None,
        observe: Observe | None,
    ) -> None:
        self.setup, self.times, self.strides = setup, times, strides
        self.cache = KVCache(setup.num_blocks, setup.block_tokens)
        self.queue: RequestQueue[SimulatedRequest] = RequestQueue(self.cache, setup.limits, setup.policy)
        self.record = Record(setup.num_blocks, setup.block_tokens)
        self.now_s = 0.0
        self.room = setup.room
        self.coming = enumerate(zip(load.sizes, first_own_ids(load), strict=True))
        self.arrivals_s = None if load.arrivals_s is None else iter(load.arrivals_s)
        self.next_arrival_s = math.inf
        self.num_requests = len(load.sizes)
        self.progress, self.observe = progress, observe
        if self.arrivals_s is None:
            for _ in range(load.concurrency or 1):
                self._let_come()
        else:
            self.next_arrival_s = next(self.arrivals_s)

    def run(self) -> Record:
        queue = self.queue
        while True:
            self._let_come_until_now()
            if not queue.has_work:
                if self.next_arrival_s == math.inf:
                    break
                self.now_s = self.next_arrival_s
                continue
            if self._step() and self.strides and queue.running:
                self._stride()
        self.record.close(self.cache.stats(), self.now_s)
        return self.record

    # Arrivals

    def _let_come(self) -> None:
        """The next request comes now. In a closed loop one that is refused lets the one after it come."""
        for number, (size, own_id) in islice(self.coming, 1 if self.arrivals_s is not None else None):
            arrival_s = self.now_s if self.arrivals_s is None else self.next_arrival_s
            try:
                check_fits(size.prompt_tokens, size.output_tokens, self.room)
            except DoesNotFit as refusal:
                self.record.refusals.append(Refusal(number, arrival_s, refusal.problem))
                self._tell_progress()
                continue
            salt = "" if self.setup.prefix_cache else str(number)
            self.queue.add(SimulatedRequest(number, size, arrival_s, own_id, salt))
            break

    def _let_come_until_now(self) -> None:
        if self.arrivals_s is None:
            return
        while self.next_arrival_s <= self.now_s:
            self._let_come()
            self.next_arrival_s = next(self.arrivals_s, math.inf)

    # Steps

    def _step(self) -> bool:
        """One step; whether nothing but tokens can change until a request ends, comes or lacks a block."""
        queue, record = self.queue, self.record
        step = queue.open_step()
        seconds = self._checked(self.times.step_seconds(step.shape))
        if self.observe is not None:
            self.observe(step, seconds)
        record.add_step(self.now_s, seconds, queue, self.cache, step.plan.num_scheduled_tokens)
        record.num_preemptions += len(step.plan.preempted)
        start_s = self.now_s
        self.now_s += seconds
        num_running = len(queue.running)
        num_drawn, num_ended = self._commit(step, start_s, seconds)
        all_decode = num_drawn == num_running
        return all_decode and (not queue.waiting or (not num_ended and _repeats(step.plan)))

    def _commit(self, step: OpenStep, start_s: float, seconds: float) -> tuple[int, int]:
        """Count what was computed; how many requests drew a token, and how many of them ended."""
        running, commit, now_s = self.queue.running, self.cache.commit, self.now_s
        num_drawn = num_ended = num_on_time = 0
        for reservation in step.reservations:
            request = running[reservation.request_id]
            commit(reservation)
            request.num_computed_tokens = reservation.stop
            if request.start_s is None:
                request.start_s = start_s
            if reservation.stop < len(request.token_ids):
                continue
            num_drawn += 1
            if request.first_token_s is None:
                request.first_token_s = now_s
            elif request.last_token_s == start_s:
                num_on_time += 1
            else:
                self.record.add_intervals(now_s - request.last_token_s, 1)
            request.take_tokens(1, now_s)
            if not request.num_left:
                num_ended += 1
                self._end(request)
        self.record.add_intervals(seconds, num_on_time)
        return num_drawn, num_ended

    def _end(self, request: SimulatedRequest) -> None:
        self.queue.end(request)
        self.record.add_request(request)
        self._tell_progress()
        if self.arrivals_s is None:
            self._let_come()

    def _stride(self) -> None:
        """As many decode steps of all running requests as must be planned alike, at once."""
        queue, cache, record = self.queue, self.cache, self.record
        may_come = bool(queue.waiting)  # nobody behind a request that is blocked is looked at
        if may_come:
            self._let_come_until_now()
        elif self.next_arrival_s <= self.now_s:
            return
        running = sorted(queue.running.values(), key=lambda request: request.arrival_order)
        computed = [request.num_computed_tokens for request in running]
        most = min(_MAX_STRIDE, *(request.num_left for request in running))
        most = plan_stride(computed, cache.block_tokens, cache.num_available_blocks, most)
        if most < 1:
            return
        seconds = self.times.decode_seconds([n + 1 for n in computed], most)
        growth = stride_growth(computed, cache.block_tokens)
        num_used, batch, num_steps = cache.pool.num_used_blocks, len(running), 0
        for step_s in seconds:
            num_used += growth[num_steps % cache.block_tokens]
            record.add_sample(self.now_s, self._checked(step_s), batch, len(queue.waiting), num_used, batch)
            record.add_intervals(step_s, batch)
            self.now_s += step_s
            num_steps += 1
            if self.next_arrival_s <= self.now_s:
                if not may_come:
                    break
                self._let_come_until_now()
        self._advance(running, num_steps)

    def _advance(self, running: list[SimulatedRequest], num_steps: int) -> None:
        reservations = []
        for request in running:
            request.take_tokens(num_steps, self.now_s)
            start = request.num_computed_tokens
            reservations.append(self.cache.reserve(request.request_id, request.token_ids[start : start + num_steps]))
        for request, reservation in zip(running, reservations, strict=True):
            self.cache.commit(reservation)
            request.num_computed_tokens = reservation.stop
            if not request.num_left:
                self._end(request)

    def _checked(self, seconds: float) -> float:
        if not 0.0 < seconds < math.inf:
            raise BackendError(f"a step is priced at {seconds} s", expected="a time above 0")
        return seconds

    def _tell_progress(self) -> None:
        if self.progress is not None:
            self.progress(len(self.record.requests) + len(self.record.refusals), self.num_requests)


def _repeats(plan: StepPlan) -> bool:
    """Was the step a decode of all who run, nobody preempted or admitted? Then whoever waits is blocked until one ends.

    What blocks the first who waits does not go away while the others decode: they take blocks and give none up, and
    what they publish, outputs of their own, is in nobody's prompt.
    """
    return not plan.preempted and all(entry.kind == "decode" and entry.prefix is None for entry in plan.scheduled)
