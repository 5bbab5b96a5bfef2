"""What would make a load keep its SLO that misses it: single changes, each simulated with the same requests.

Types and numbers of devices are those that a plan's variants know, other devices the faster ones; beside them limits of
a step, smaller and larger, and replicas, between which the requests are shared out: each is asked a part of the rate.
Nothing is bisected, for under load more is not always better: of each lever the mildest value that keeps it is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from kvwise.errors import KvwiseError
from kvwise.hardware.devices import Device, Placement
from kvwise.ledger.levers import Change, Lever, changes_that
from kvwise.planner.capacity import Deployment, deploy
from kvwise.planner.quality import describe_quality
from kvwise.planner.simulation.asked import Asked
from kvwise.planner.simulation.load import Load
from kvwise.planner.simulation.simulate import Progress
from kvwise.planner.simulation.slo import Slo, Verdict
from kvwise.planner.variants import variant_of
from kvwise.units import format_count

_FROM_VARIANTS: Final = ("kv_dtype", "weights", "devices")
_REPLICAS: Final = (2, 3, 4, 8)
_LEAST_STEP_TOKENS: Final = 128  # of less, steps of prompts cost more in starts than they save in waiting
_MOST_REQUESTS: Final = 1024


@dataclass(frozen=True, slots=True)
class LoadChange:
    """A change, and how the load fares with it. quality: "" where the numbers stay the same."""

    change: Change
    verdict: Verdict
    quality: str

    def to_json(self) -> dict[str, object]:
        value = self.change.value
        return {
            "lever": self.change.lever,
            "value": value if isinstance(value, (int, str)) else str(value),
            "words": self.change.words,
            "verdict": asdict(self.verdict),
            "quality": self.quality,
        }


def changes_that_keep(
    deployment: Deployment, asked: Asked, slo: Slo, progress: Progress | None = None
) -> Iterator[LoadChange]:
    """Single changes with which the given load keeps `slo`, as they are found. `asked.given` must be there."""
    assert asked.given is not None
    given, verdicts = asked.given, dict[tuple[str, str], Verdict]()

    def holds(lever: str, value: Any) -> bool:
        try:
            changed, load = _changed(deployment, asked, given, lever, value)
            verdict = verdicts[lever, str(value)] = slo.judge(changed.serve(load, progress))
        except KvwiseError:  # it does not fit, can't be cut so, or has no price
            return False
        return verdict.kept

    for change in changes_that(holds, _levers(deployment, asked)):
        quality = describe_quality(change.lever, change.value) if change.lever in ("weights", "kv_dtype") else ""
        yield LoadChange(change, verdicts[change.lever, str(change.value)], quality)


def _changed(deployment: Deployment, asked: Asked, given: Load, lever: str, value: Any) -> tuple[Deployment, Load]:
    if lever == "replicas":
        assert given.rate is not None
        return deployment, asked.at(given.rate / value)
    name = "on" if lever in ("devices", "device") else lever
    return deploy(**{**deployment.arguments, name: value}), given


def _levers(deployment: Deployment, asked: Asked) -> Iterator[Lever]:
    limits = deployment.setup.limits
    requests = [n for n in _around(limits.max_requests) if 1 <= n <= min(_MOST_REQUESTS, limits.max_tokens)]
    tokens = [n for n in _around(limits.max_tokens) if max(_LEAST_STEP_TOKENS, limits.max_requests) <= n]
    yield Lever(
        "max_requests", requests, lambda n: f"at most {format_count(n)} requests in a step", by_degrees=False, most=1
    )
    yield Lever(
        "step_tokens", tokens, lambda n: f"at most {format_count(n)} tokens in a step", by_degrees=False, most=1
    )
    for lever in variant_of(deployment.plan).levers():
        if lever.name in _FROM_VARIANTS:
            yield replace(lever, most=1)
        elif lever.name == "device":
            yield replace(lever, values=_faster(deployment.placement.device, lever.values), most=1)
    if not asked.closed and asked.given is not None and asked.given.rate is not None:
        yield Lever(
            "replicas", _REPLICAS, lambda n: f"{n} of these engines, each with its part of the load",
            by_degrees=False, most=1,
        )  # fmt: skip


def _faster(device: Device, placements: Sequence[Placement]) -> list[Placement]:
    """Those on devices that read memory faster, the slowest first."""
    now = device.bandwidth or 0.0
    faster = [placement for placement in placements if (placement.device.bandwidth or 0.0) > now]
    return sorted(faster, key=lambda placement: placement.device.bandwidth or 0.0)


def _around(value: int) -> Sequence[int]:
    """Halves and doubles, the nearest first."""
    return (value // 2, 2 * value, value // 4, 4 * value, value // 8)
