"""What would make a plan do that does not fit, or misses its target: single changes, and what each of them costs.

Every change was planned anew, by the functions that made the plan, and does: none is an estimate. Of a setting that can
be changed by degrees (context, requests, tokens of a step or of a block) it is the mildest change that does; of types
and devices those worth trying are named. What it costs: latency by the same price, quality where it was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from kvwise.errors import DoesNotFit, KvwiseError, NotMeasured
from kvwise.ledger.levers import Change, changes_that, format_advice
from kvwise.planner.latency import Latency
from kvwise.planner.plan import Plan
from kvwise.planner.quality import describe_quality
from kvwise.planner.target import Target
from kvwise.planner.variants import Variant, variant_of
from kvwise.units import format_seconds


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """A change, and the latency with it; None where nothing is known of the machine's speed.

    quality: "" where the numbers stay the same, else what is known of what they cost.
    """

    change: Change
    latency: Latency | None
    quality: str

    def to_json(self) -> dict[str, object]:
        latency = self.latency
        return {
            "lever": self.change.lever,
            "value": self.change.value if isinstance(self.change.value, (int, str)) else str(self.change.value),
            "words": self.change.words,
            "ttft_s": None if latency is None else latency.ttft_s.value,
            "tpot_s": None if latency is None or latency.tpot_s is None else latency.tpot_s.value,
            "output_tokens_per_s": None if latency is None else latency.output_tokens_per_s.value,
            "quality": self.quality,
        }


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a plan does what it is asked to, and if not, what would. forced: it is to be taken anyway."""

    plan: Plan
    target: Target | None
    missed: tuple[str, ...]
    changes: tuple[Counterfactual, ...]
    forced: bool

    @property
    def does(self) -> bool:
        return self.plan.fits and not self.missed

    def check(self) -> None:
        """Raise DoesNotFit, with the arithmetic and the changes that would do, unless it does or is forced."""
        if self.does or self.forced:
            return
        if not self.plan.fits:
            self.plan.check_fits([found.change for found in self.changes])
        limits = {} if self.target is None else self.target.limits
        raise DoesNotFit(
            f"the plan misses its target: {', '.join(self.missed)}",
            expected=", ".join(f"{name} within {format_seconds(limits[name])}" for name in self.missed),
            action=format_advice((found.change for found in self.changes), "keeps it"),
        )

    def to_json(self) -> dict[str, object]:
        """The plan's, and the judgement beside it."""
        return {
            **self.plan.to_json(),
            "target": None if self.target is None else {**asdict(self.target), "missed": list(self.missed)},
            "forced": self.forced,
            "changes": [found.to_json() for found in self.changes],
        }


def judge(plan: Plan, target: Target | None = None, *, forced: bool = False) -> Judgement:
    """Raises NotMeasured for a target where nothing says how long steps take."""
    missed: tuple[str, ...] = ()
    if target is not None:
        if plan.latency is None:
            raise NotMeasured("no latency is predicted, so no target can be kept", action="plan --on a device")
        missed = target.missed(plan.latency)
    return Judgement(plan, target, missed, counterfactuals(plan, target), forced)


def counterfactuals(plan: Plan, target: Target | None = None) -> tuple[Counterfactual, ...]:
    """Single changes with which `plan` fits and keeps `target`; none where it does already. Pure."""
    variant = variant_of(plan)
    if does(variant, target):
        return ()
    return tuple(_found(variant, target))


def does(variant: Variant, target: Target | None = None) -> bool:
    """Whether it fits, and keeps the target. A target is not kept where nothing says how long steps take."""
    if not variant.fits:
        return False
    return target is None or (variant.latency is not None and not target.missed(variant.latency))


def _found(variant: Variant, target: Target | None) -> Iterator[Counterfactual]:
    made: dict[tuple[str, str], Variant] = {}  # those that were tried are not planned twice

    def changed(lever: str, value: Any) -> Variant:
        key = (lever, str(value))
        if key not in made:
            made[key] = variant.changed(lever, value)
        return made[key]

    def holds(lever: str, value: Any) -> bool:
        try:
            return does(changed(lever, value), target)
        except KvwiseError:  # the model can't be cut so, or stored so
            return False

    for change in changes_that(holds, variant.levers()):
        latency = changed(change.lever, change.value).latency
        quality = describe_quality(change.lever, change.value) if change.lever in ("weights", "kv_dtype") else ""
        yield Counterfactual(change, latency, quality)
