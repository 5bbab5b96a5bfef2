"""`kvwise chat`: a conversation that computes only what is new in each turn."""

from __future__ import annotations

from kvwise.cli import options as o


def chat_command(model: str = "smollm2-135m-instruct", as_json: o.Json = False) -> None:
    """Talk with MODEL."""
