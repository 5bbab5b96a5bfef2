"""Step plans and policies: what to compute next, decided from numbers alone. No engine, no tensors, no clocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from kvwise.registry import Table
from kvwise.scheduler.fcfs import plan_step
from kvwise.scheduler.step_plan import (
    BlockedRequest,
    CacheView,
    RequestView,
    Schedulable,
    ScheduledRequest,
    StepLimits,
    StepPlan,
)


class Policy(Protocol):
    """A pure function from requests, cache and limits to a plan."""

    def __call__(
        self, running: Iterable[Schedulable], waiting: Iterable[Schedulable], cache: CacheView, limits: StepLimits
    ) -> StepPlan: ...


POLICIES: Final[Table[Policy]] = Table("scheduling policy", {"fcfs": "kvwise.scheduler.fcfs:plan_step"})

__all__ = [
    "POLICIES",
    "BlockedRequest",
    "CacheView",
    "Policy",
    "RequestView",
    "Schedulable",
    "ScheduledRequest",
    "StepLimits",
    "StepPlan",
    "plan_step",
]
