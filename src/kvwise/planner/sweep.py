"""The same plan over many contexts, batches and machines: a point for each, varied by the functions that make plans.

What does not change with context and batch is computed once for each machine. Knows no file and no table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Final

from kvwise.errors import UsageError
from kvwise.hardware.devices import Placement, parse_placement
from kvwise.ledger.rows import largest_residual_bytes
from kvwise.planner.memory import plan
from kvwise.planner.policy import KVWISE, Policy
from kvwise.planner.variants import LocalVariant, PlacedVariant, Variant, variant_of

Progress = Callable[[int, int], None]  # (points done, points in all)
PolicyOf = Callable[[Placement], Policy]

MAX_POINTS: Final = 1_000_000
JSON_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """`batch` requests of `context` tokens each on a machine. Bytes are of its fullest device, seconds predicted.

    free_bytes: of the budget beside total and reserve; what is missing is negative. max_requests: of this context that
    have room at once; None where only a fit is known. Seconds, rate and bound (of a
    decode step) are None where nothing says how long a step takes.
    """

    on: str
    context: int
    batch: int
    fits: bool
    total_bytes: int
    kv_bytes: int
    budget_bytes: int
    free_bytes: int
    max_requests: int | None
    ttft_s: float | None
    tpot_s: float | None
    output_tokens_per_s: float | None
    bound: str | None

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Sweep:
    """The points by machine, then context, then batch, each ascending. policies: by the machine."""

    model: str
    points: tuple[SweepPoint, ...]
    policies: Mapping[str, Policy]

    def to_json(self) -> dict[str, object]:
        return {
            "version": JSON_VERSION,
            "model": self.model,
            "policies": {on: asdict(policy) for on, policy in self.policies.items()},
            "points": [point.to_json() for point in self.points],
        }


def sweep(
    model: Any,
    *,
    contexts: Sequence[int],
    batches: Sequence[int],
    on: Sequence[str] = ("this",),
    policy_of: PolicyOf = lambda _placement: KVWISE,
    progress: Progress | None = None,
    **asked: Any,
) -> Sweep:
    """Every context with every batch on every machine. `asked`: as plan() takes it. Reads no weights.

    Raises UsageError for a sweep of nothing or of more than MAX_POINTS, and what plan() does.
    """
    contexts, batches = sorted(set(contexts)), sorted(set(batches))
    total = len(contexts) * len(batches) * len(on)
    if not 1 <= total <= MAX_POINTS:
        raise UsageError(f"a sweep of {total:,} points", expected=f"1 to {MAX_POINTS:,}")
    points: list[SweepPoint] = []
    policies: dict[str, Policy] = {}
    name = ""
    for text in on:
        placement = parse_placement(text)
        policy = policies[str(placement)] = policy_of(placement)
        for named, point in _points(model, placement, policy, contexts, batches, asked):
            name = named
            points.append(point)
            if progress is not None:
                progress(len(points), total)
    return Sweep(name, tuple(points), policies)


def _points(
    model: Any,
    placement: Placement,
    policy: Policy,
    contexts: Sequence[int],
    batches: Sequence[int],
    asked: Mapping[str, Any],
) -> Iterator[tuple[str, SweepPoint]]:
    """With the model's name."""
    if placement.is_this_machine:
        for context, batch in product(contexts, batches):
            planned = plan(model, context=context, batch=batch, on=placement, policy=policy, **asked)
            yield planned.model, _point(placement, context, batch, variant_of(planned))
        return
    planned = plan(model, context=contexts[0], batch=batches[0], on=placement, policy=policy, **asked)
    first = variant_of(planned)
    for context in contexts:
        longer = first.changed("context", context)
        for batch in batches:
            yield planned.model, _point(placement, context, batch, longer.changed("batch", batch))


def _point(placement: Placement, context: int, batch: int, variant: Variant) -> SweepPoint:
    return SweepPoint(str(placement), context, batch, variant.fits, **_memory(variant), **_latency(variant))


def _memory(variant: Variant) -> Mapping[str, Any]:
    if isinstance(variant, PlacedVariant):
        stage = variant.placed.fullest
        return {
            "total_bytes": stage.total_bytes,
            "kv_bytes": stage.row("kv_pool") + stage.row("states"),
            "budget_bytes": stage.budget_bytes,
            "free_bytes": stage.free_bytes,
            "max_requests": variant.placed.max_requests,
        }
    assert isinstance(variant, LocalVariant)
    memory = variant.memory
    return {
        "total_bytes": memory.total_bytes,
        "kv_bytes": memory.needs.kv_pool_bytes,
        "budget_bytes": memory.budget_bytes,
        "free_bytes": memory.budget_bytes - memory.total_bytes - largest_residual_bytes(memory.total_bytes),
        "max_requests": None,
    }


def _latency(variant: Variant) -> Mapping[str, Any]:
    latency = variant.latency
    if latency is None:
        return dict.fromkeys(("ttft_s", "tpot_s", "output_tokens_per_s", "bound"))
    return {
        "ttft_s": latency.ttft_s.value,
        "tpot_s": None if latency.tpot_s is None else latency.tpot_s.value,
        "output_tokens_per_s": latency.output_tokens_per_s.value,
        "bound": latency.decode.bound,
    }
