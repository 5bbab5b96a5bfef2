"""The one schema of every prediction and measurement, and sums over it. Knows neither models nor machines.

    name | predicted | measured | unit | source

`source` says which tools read the two figures: "formula / pagemap". What was not predicted, or not measured, is None,
never 0. Rows of memory:

    weights    as the backend holds them
    kv_pool    every block of the pool
    arena      activations and scratch
    logits     R_max rows
    tables     rotary tables, staging
    states     what requests hold once, whatever their length
    tokenizer  vocabulary and merges
    runtime    the process before the model: interpreter and libraries
    residual   what is resident beyond all of these; predicted 0, a large one is a bug
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypedDict

from kvwise.frozen import dataclass
from kvwise.units import MiB, format_bytes, format_count, format_seconds

Unit = Literal["B", "s", "tokens", "tokens/s", "1"]

MEMORY_ROWS: Final[Mapping[str, str]] = {
    "weights": "weights",
    "kv_pool": "KV pool",
    "arena": "activation arena",
    "logits": "logits",
    "tables": "rotary and block tables",
    "states": "states that do not grow",
    "tokenizer": "tokenizer",
    "runtime": "runtime and interpreter",
    "residual": "residual",
}

# The largest residual that is not a bug: thread stacks, allocator slack and page tables stay below it.
RESIDUAL_FRACTION: Final = 0.03
RESIDUAL_BYTES: Final = 32 * MiB


class RowJson(TypedDict):
    """A row as --json prints it."""

    name: str
    predicted: float | int | None
    measured: float | int | None
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One figure, predicted and measured. `name` is stable, for programs; `label` is for people."""

    name: str
    predicted: float | int | None
    measured: float | int | None
    unit: Unit
    source: str

    @property
    def label(self) -> str:
        return MEMORY_ROWS.get(self.name, self.name.replace("_", " "))

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1; None where there is nothing to compare."""
        if not self.predicted or not self.measured:
            return None
        return self.predicted / self.measured - 1

    def to_json(self) -> RowJson:
        return RowJson(
            name=self.name, predicted=self.predicted, measured=self.measured, unit=self.unit, source=self.source
        )

    def format_value(self, value: float | int | None) -> str:
        """A figure of this row for people; a dash where there is none."""
        if value is None:
            return "-"
        if self.unit == "B":
            return format_bytes(value)
        if self.unit == "s":
            return format_seconds(value)
        return format_count(value) if self.unit == "tokens" else f"{value:.3g}"


def sum_predicted(rows: Iterable[LedgerRow]) -> int:
    """Bytes predicted by all rows of memory."""
    return sum(int(row.predicted) for row in rows if row.unit == "B" and row.predicted is not None)


def sum_measured(rows: Iterable[LedgerRow]) -> int:
    """Bytes measured by all rows of memory."""
    return sum(int(row.measured) for row in rows if row.unit == "B" and row.measured is not None)


def residual_row(rows: Iterable[LedgerRow], process_bytes: int | None, source: str) -> LedgerRow:
    """What the process holds beyond `rows`. Negative where pages are counted twice: also a bug."""
    measured = None if process_bytes is None else process_bytes - sum_measured(rows)
    return LedgerRow("residual", 0, measured, "B", f"0 by definition / {source} - rows above")


def largest_residual_bytes(total_bytes: int) -> int:
    """How large a residual may be in a process of `total_bytes`: the larger of 3 % and 32 MiB."""
    return max(int(RESIDUAL_FRACTION * total_bytes), RESIDUAL_BYTES)
