"""`kvwise plan`."""

from __future__ import annotations


def plan_command(model: str) -> None:
    """Say what MODEL will cost."""
