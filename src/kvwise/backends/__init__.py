"""Readings of a program that run it: `reference` (numpy, the truth) and `native` (C++, the speed)."""

from __future__ import annotations

from typing import Final

from kvwise.backends.protocol import Backend
from kvwise.errors import UsageError
from kvwise.registry import Table

BACKENDS: Final[Table[Backend]] = Table(
    "backend",
    {
        "native": "kvwise.backends.native.backend:NATIVE",
        "reference": "kvwise.backends.reference.backend:REFERENCE",
    },
    UsageError,
)
