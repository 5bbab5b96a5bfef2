"""Step plans and policies: what to compute next, decided from numbers alone. No engine, no tensors, no clocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from kvwise.errors import UsageError
from kvwise.registry import Table
from kvwise.scheduler.fcfs import plan_step
from kvwise.scheduler.step_plan import (
    BlockedRequest,
    CacheView,
    RequestView,
    Schedulable,
    ScheduledRequest,
    StepPlan,
    check_limits,
)
from kvwise.spec.shape import StepLimits


class Policy(Protocol):
    """A pure function from requests, cache and limits to a plan."""

    def __call__(
        self, running: Iterable[Schedulable], waiting: Iterable[Schedulable], cache: CacheView, limits: StepLimits
    ) -> StepPlan: ...


POLICIES: Final[Table[Policy]] = Table(
    "scheduling policy",
    {"fcfs": "kvwise.scheduler.fcfs:plan_step", "prompts_first": "kvwise.scheduler.fcfs:plan_prompts_first"},
    UsageError,
)

__all__ = [
    "POLICIES",
    "BlockedRequest",
    "CacheView",
    "Policy",
    "RequestView",
    "Schedulable",
    "ScheduledRequest",
    "StepPlan",
    "check_limits",
    "plan_step",
]
