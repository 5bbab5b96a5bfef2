"""`kvwise plan --compare`: plans side by side, a column each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvwise.errors import UsageError
from kvwise.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from kvwise.planner.plan import Plan

JSON_VERSION: Final = 1
_SHOWN_CHARS: Final = 40


def tell_apart(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """(models, placements) of what was named: what is on this disk is a model, a device's name is a placement."""
    from kvwise.hardware.devices import find_device

    models: list[str] = []
    places: list[str] = []
    for name in names:
        try:
            is_place = not Path(name).exists() and bool(find_device(name.partition(":")[0]))
        except UsageError:
            is_place = False
        (places if is_place else models).append(name)
    return models, places


def comparison(plans: Sequence[Plan]) -> Table:
    """The figures that decide, row by row; a dash where one is not known."""
    from rich.table import Table

    from kvwise.cli.output import printable

    first = plans[0]
    table = Table(title=f"{first.batch} x {format_count(first.context)} tokens", title_justify="left")
    table.add_column("")
    for plan in plans:
        where = "here" if plan.placed is None else str(plan.placed.placement)
        table.add_column(f"{printable(plan.model[:_SHOWN_CHARS])}\n{where}", justify="right")
    for name, figure in _ROWS:
        values = [figure(plan) for plan in plans]
        if any(value is not None for value in values):
            table.add_row(name, *("-" if value is None else value for value in values))
    return table


def _size_of(row: str) -> Callable[[Plan], str | None]:
    def size(plan: Plan) -> str | None:
        found = [int(r.predicted or 0) for r in plan.rows if r.name == row]
        return format_bytes(sum(found)) if found else None

    return size


def _most(plan: Plan) -> str | None:
    return None if plan.placed is None else format_count(plan.placed.max_requests)


def _ttft(plan: Plan) -> str | None:
    return None if plan.latency is None else format_seconds(plan.latency.ttft_s.value)


def _tpot(plan: Plan) -> str | None:
    tpot_s = None if plan.latency is None else plan.latency.tpot_s
    return None if tpot_s is None else format_seconds(tpot_s.value)


def _output(plan: Plan) -> str | None:
    return None if plan.latency is None else f"{plan.latency.output_tokens_per_s.value:,.0f} tokens/s"


def _bound(plan: Plan) -> str | None:
    return None if plan.latency is None else f"{plan.latency.prefill.bound}, {plan.latency.decode.bound}"


_ROWS: Final[Sequence[tuple[str, Callable[[Plan], str | None]]]] = (
    ("fits", lambda plan: "yes" if plan.fits else "no"),
    ("context", lambda plan: format_count(plan.context)),
    ("parameters", lambda plan: format_count(plan.parameters)),
    ("weights in", lambda plan: plan.weight_type),
    ("KV per token", lambda plan: format_bytes(plan.kv_bytes_per_token)),
    ("weights", _size_of("weights")),
    ("KV pool", _size_of("kv_pool")),
    ("states", _size_of("states")),
    ("activations", _size_of("arena")),
    ("logits", _size_of("logits")),
    ("total and reserve", lambda plan: format_bytes(plan.total_bytes + plan.reserve_bytes)),
    ("there is", lambda plan: format_bytes(plan.budget_bytes)),
    ("room for requests", _most),
    ("first token", _ttft),
    ("each further token", _tpot),
    ("output", _output),
    ("prefill, decode bound by", _bound),
)
