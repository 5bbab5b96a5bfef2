"""Who waits and who runs, and the half of a step that needs no executor: plan, preempt, admit, reserve.

    add ──▶ waiting ──admit──▶ running ──end──▶ gone
               ▲                  │
               └───wait_again─────┘

The engine fills what was reserved with computed tokens; the simulation of the planner drives this same object on a
virtual clock, so both make the same decisions. Knows no executor, clock, sampler or text.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import Generic, NamedTuple, Protocol, TypeVar

from kvwise.kvcache import KVCache, Reservation
from kvwise.scheduler import Policy, Schedulable, plan_step
from kvwise.scheduler.step_plan import StepPlan, check_limits
from kvwise.spec.shape import StepLimits, StepShape


class Queued(Schedulable, Protocol):
    """What a policy plans, with the two moments that it must know of."""

    def admit(self, num_cached_tokens: int) -> None:
        """It runs from now on; its first `num_cached_tokens` tokens are computed already."""
        ...

    def lose_blocks(self) -> None:
        """It waits again, with no token computed."""
        ...


S = TypeVar("S", bound=Queued)
_ARRIVAL = attrgetter("arrival_order")


class OpenStep(NamedTuple):
    """A step whose slots are reserved: `reservations[i]` is of `plan.scheduled[i]`. To be committed or abandoned."""

    plan: StepPlan
    reservations: tuple[Reservation, ...]

    @property
    def shape(self) -> StepShape:
        queries = tuple(len(r.token_ids) for r in self.reservations)
        return StepShape(queries, tuple(r.stop for r in self.reservations), self.plan.num_logits_rows)


class RequestQueue(Generic[S]):
    """Waiting requests in order of arrival, running ones by id, and the cache that holds the running ones' tokens."""

    def __init__(self, cache: KVCache, limits: StepLimits, policy: Policy = plan_step) -> None:
        check_limits(limits)
        self.cache, self.limits = cache, limits
        self.waiting: list[S] = []
        self.running: dict[str, S] = {}
        self._policy = policy

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: S) -> None:
        """Let a request wait that arrived after all others."""
        self.waiting.append(request)

    def open_step(self) -> OpenStep:
        """Plan a step and carry it out as far as the slots. When it raises no reservation is left open."""
        plan = self._policy(self.running.values(), self.waiting, self.cache, self.limits)
        for request_id in plan.preempted:
            self.wait_again(self.running[request_id])
        self._admit(plan)
        return OpenStep(plan, self._reserve(plan))

    def abandon(self, step: OpenStep) -> None:
        """Undo the step's reservations. Who was admitted stays admitted, who was preempted waits."""
        for reservation in step.reservations:
            self.cache.abandon(reservation)

    def wait_again(self, request: S) -> None:
        """Give up a running request's blocks; it will be computed anew, in order of arrival."""
        del self.running[request.request_id]
        self.cache.release(request.request_id)
        request.lose_blocks()
        insort(self.waiting, request, key=_ARRIVAL)

    def end(self, request: S) -> None:
        """Take a request out, running or waiting; a running one's blocks are given up."""
        if self.running.pop(request.request_id, None) is not None:
            self.cache.release(request.request_id)
        else:
            self.waiting.remove(request)

    def _admit(self, plan: StepPlan) -> None:
        admitted = {entry.request_id: entry.prefix for entry in plan.scheduled if entry.prefix is not None}
        place = 0  # policies admit from the front: nobody behind the last one admitted is looked at
        while admitted:
            request = self.waiting[place]
            prefix = admitted.pop(request.request_id, None)
            if prefix is None:
                place += 1
                continue
            self.cache.admit(request.request_id, prefix)
            del self.waiting[place]
            request.admit(prefix.num_cached_tokens)
            self.running[request.request_id] = request

    def _reserve(self, plan: StepPlan) -> tuple[Reservation, ...]:
        reservations: list[Reservation] = []
        try:
            for entry in plan.scheduled:
                request = self.running[entry.request_id]
                start = request.num_computed_tokens
                token_ids = request.token_ids[start : start + entry.num_scheduled_tokens]
                reservations.append(self.cache.reserve(entry.request_id, token_ids))
        except BaseException:
            for reservation in reservations:
                self.cache.abandon(reservation)
            raise
        return tuple(reservations)
