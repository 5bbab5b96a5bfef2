"""`kvwise plan`: what a model takes in memory, as tables or as one JSON object."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final, Optional

import typer

from kvwise.cli import options as o
from kvwise.errors import UsageError
from kvwise.units import GB, GiB, KiB, MiB, TiB, format_bytes, format_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from kvwise.planner.plan import Plan

_SHOWN_CHARS: Final = 200  # of a name, which a file may make as long as it likes
_UNITS: Final = {
    "": 1, "b": 1, "kib": KiB, "mib": MiB, "gib": GiB, "tib": TiB, "kb": 10**3, "mb": 10**6, "gb": GB, "tb": 10**12,
}  # fmt: skip


def plan_command(
    model: Annotated[Optional[str], typer.Argument(help="A file, a folder, a config.json or a name.")] = None,  # noqa: UP045
    context: Annotated[Optional[int], typer.Option("--context", help="Tokens of each request.")] = None,  # noqa: UP045
    batch: Annotated[int, typer.Option("--batch", help="Requests at the same time.")] = 1,
    kv_dtype: o.KvDtype = "f16",
    weights: Annotated[Optional[str], typer.Option(help="Plan for weights of this type: q4_0, int8, bf16, ...")] = None,  # noqa: UP045
    params: Annotated[Optional[float], typer.Option(help="A shape instead of a model: parameters, 7e9.")] = None,  # noqa: UP045
    layers: Annotated[Optional[int], typer.Option(help="With --params: layers.")] = None,  # noqa: UP045
    kv_heads: Annotated[Optional[int], typer.Option(help="With --params: KV heads.")] = None,  # noqa: UP045
    head_dim: Annotated[Optional[int], typer.Option(help="With --params: elements of a head.")] = None,  # noqa: UP045
    q_heads: Annotated[Optional[int], typer.Option(help="With --params: query heads, for the MHA figure.")] = None,  # noqa: UP045
    memory: Annotated[Optional[str], typer.Option(help="Fail (exit 3) unless it fits into this: 8GiB.")] = None,  # noqa: UP045
    check: Annotated[bool, typer.Option("--check", help="Fail (exit 3) unless it fits this machine now.")] = False,
    as_json: o.Json = False,
) -> None:
    """Say what MODEL takes in memory. Reads no weights; a bare config.json is enough."""
    from kvwise.planner.memory import plan, plan_shape

    shape = {"--layers": layers, "--kv-heads": kv_heads, "--head-dim": head_dim}
    limit = None if memory is None else parse_bytes("--memory", memory)
    if model is not None:
        stray = [
            name for name, value in {"--params": params, **shape, "--q-heads": q_heads}.items() if value is not None
        ]
        if stray:
            raise UsageError(f"{stray[0]} beside a model", expected="a model or a shape")
        result = plan(model, context=context, batch=batch, kv_dtype=kv_dtype, weights=weights, memory_limit=limit)
    else:
        if params is None:
            raise UsageError(
                "there is no model", expected="MODEL, or --params with --layers, --kv-heads and --head-dim"
            )
        if layers is None or kv_heads is None or head_dim is None:
            missing = [name for name, value in shape.items() if value is None]
            raise UsageError(f"--params without {', '.join(missing)}")
        result = plan_shape(
            params=params, layers=layers, kv_heads=kv_heads, head_dim=head_dim, q_heads=q_heads, context=context,
            batch=batch, kv_dtype=kv_dtype, weights="bf16" if weights is None else weights, memory_limit=limit,
        )  # fmt: skip
    _print(result, as_json)
    if check or limit is not None:
        result.check_fits()


def _print(result: Plan, as_json: bool) -> None:
    from kvwise.cli.output import people, print_json

    if as_json:
        print_json(result.to_json())
    else:
        render_plan(result, people(stderr=False))


def parse_bytes(option: str, text: str) -> int:
    """'8GiB', '8 GB' or '1073741824' in bytes. Raises UsageError."""
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None or float(match[1]) <= 0:
        raise UsageError(f"{option} is {text!r}", expected="a size such as 8GiB, 500MiB or 8GB")
    return int(float(match[1]) * unit)


def render_plan(plan: Plan, console: Console) -> None:
    """The tables for people. Prints to `console`, nothing else."""
    from kvwise.cli.output import printable

    active = plan.active_parameters
    some = f", {format_count(active)} of them active per token" if active and active != plan.parameters else ""
    counted = f"{format_count(plan.parameters)} parameters{some}"
    console.print(f"{printable(plan.model[:_SHOWN_CHARS])} ({plan.source}), {counted}", style="bold")
    console.print(_ledger(plan))
    console.print(_verdict(plan))
    console.print(_weights(plan))
    console.print(_kv(plan))
    if plan.alternatives:
        console.print(_alternatives(plan))
    for note in plan.notes:
        console.print(f"note: {printable(note)}", style="dim")


def _ledger(plan: Plan) -> Table:
    table = _table(f"memory at {plan.batch} x {format_count(plan.context)} tokens", "predicted", "from")
    for row in plan.rows:
        table.add_row(row.label, row.format_value(row.predicted), row.source)
    table.add_row("total", format_bytes(plan.total_bytes), "sum")
    return table


def _verdict(plan: Plan) -> str:
    """Whether it fits, with both sides of the comparison that decides it."""
    limited = plan.memory_limit is not None and plan.budget_bytes == plan.memory_limit
    source = "(the limit that was set)" if limited else f"available here ({plan.host.source})"
    needed = f"{format_bytes(plan.total_bytes)} and {format_bytes(plan.reserve_bytes)} in reserve"
    return f"{'fits' if plan.fits else 'does not fit'}: {needed}, of {format_bytes(plan.budget_bytes)} {source}"


def _weights(plan: Plan) -> Table:
    table = _table("weights", "bytes")
    table.add_row(plan.weight_type, format_bytes(plan.weight_bytes))
    for part in () if plan.stored is None else plan.stored.parts:
        table.add_row(f"  in the files: {part.part.value}", format_bytes(part.nbytes))
    for name, nbytes in plan.weight_bytes_at.items():
        table.add_row(f"at {name}", format_bytes(nbytes))
    return table


def _kv(plan: Plan) -> Table:
    kv = plan.kv
    growing = plan.kv_bytes_per_token_growing
    grows = "" if growing == plan.kv_bytes_per_token else f", {format_bytes(growing)} of it in layers without a window"
    beside = f"; beside it {format_bytes(kv.index_bytes_per_token)} of index keys" if kv.index_bytes_per_token else ""
    title = f"KV cache in {kv.kv_type.name}: {format_bytes(plan.kv_bytes_per_token)} per token{grows}{beside}"
    batches = sorted({cell.batch for cell in plan.kv_table})
    table = _table(title, *(f"batch {n}" for n in batches))
    cells = {(cell.context, cell.batch): cell for cell in plan.kv_table}
    for context in sorted({cell.context for cell in plan.kv_table}):
        row = [format_bytes(cells[context, n].stored_bytes) for n in batches]
        table.add_row(f"{format_count(context)} tokens", *row)
    return table


def _alternatives(plan: Plan) -> Table:
    table = _table("the same model with other KV heads", "KV heads", "per token", f"{plan.batch} x {plan.context}")
    heads = max((layer.num_kv_heads for layer in plan.kv.layers), default=0)
    table.add_row("as it is", str(heads), format_bytes(plan.kv_bytes_per_token), format_bytes(plan.kv_bytes))
    for other in plan.alternatives:
        per_token, total = format_bytes(other.kv_bytes_per_token), format_bytes(other.kv_bytes)
        table.add_row(other.name.upper(), str(other.num_kv_heads), per_token, total)
    return table


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="left" if name == "from" else "right")
    return table
