"""--preset and --set: from what a user types to the policy of each placement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvwise.errors import UsageError

if TYPE_CHECKING:
    from kvwise.hardware.devices import Placement
    from kvwise.planner.policy import Policy
    from kvwise.planner.sweep import PolicyOf


def policy_of(preset: str | None, switches: Sequence[str] | None) -> PolicyOf | None:
    """None where neither was given. Raises UsageError for a preset or a switch that is none, before anything else."""
    if preset is None and not switches:
        return None
    from kvwise.planner.policy import KVWISE
    from kvwise.planner.presets import PRESETS, set_switches

    made = PRESETS[preset or "kvwise"]
    set_switches(KVWISE, switches or ())

    def of(placement: Placement) -> Policy:
        return set_switches(made(placement), switches or ())

    return of


def policy_on_devices(preset: str | None, switches: Sequence[str] | None, on: str) -> PolicyOf | None:
    """policy_of. Raises UsageError where it is for this machine, whose memory no policy divides."""
    found = policy_of(preset, switches)
    if found is not None and on == "this":
        raise UsageError("--preset or --set without devices", expected="--on, whose memory is divided so")
    return found
