"""The tables of `kvwise plan`, for people. Knows how a plan is read, not how it was made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvwise.cli.latency_tables import bounds_lines, latency_table
from kvwise.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from kvwise.planner.counterfactuals import Judgement
    from kvwise.planner.placed import PlacedPlan
    from kvwise.planner.plan import Plan

_SHOWN_CHARS: Final = 200  # of a name, which a file may make as long as it likes


def render_plan(plan: Plan, console: Console) -> None:
    """The tables for people. Prints to `console`, nothing else."""
    from kvwise.cli.output import printable

    active = plan.active_parameters
    some = f", {format_count(active)} of them active per token" if active and active != plan.parameters else ""
    counted = f"{format_count(plan.parameters)} parameters{some}"
    console.print(f"{printable(plan.model[:_SHOWN_CHARS])} ({plan.source}), {counted}", style="bold")
    if plan.placed is not None:
        console.print(_devices(plan.placed))
    console.print(_ledger(plan))
    if plan.placed is not None and len(plan.placed.stages) > 1:
        console.print(_stages(plan.placed))
    console.print(_verdict(plan))
    console.print(_weights(plan))
    console.print(_kv(plan))
    if plan.alternatives:
        console.print(_alternatives(plan))
    if plan.latency is not None:
        console.print(latency_table(plan.latency))
        for line in bounds_lines(plan.latency):
            console.print(line)
    for note in plan.notes:
        console.print(f"note: {printable(note)}", style="dim")


def render_changes(judgement: Judgement, console: Console) -> None:
    """What would make it do, where it does not, and what each change costs. Prints to `console`, nothing else."""
    if judgement.does:
        return
    purpose = "makes it fit" if not judgement.plan.fits else "keeps the target"
    if not judgement.changes:
        console.print(f"no single change {purpose}")
        return
    table = _table(f"each of these alone {purpose}", "TTFT", "TPOT", "output", "quality")
    for found in judgement.changes:
        latency = found.latency
        tpot = None if latency is None else latency.tpot_s
        table.add_row(
            found.change.words,
            "" if latency is None else format_seconds(latency.ttft_s.value),
            "" if tpot is None else format_seconds(tpot.value),
            "" if latency is None else f"{latency.output_tokens_per_s.value:,.0f} tokens/s",
            found.quality or "the same",
        )
    console.print(table)


def _ledger(plan: Plan) -> Table:
    where = (
        "" if plan.placed is None else " of each device" if len(plan.placed.stages) == 1 else " of the fullest device"
    )
    table = _table(f"memory{where} at {plan.batch} x {format_count(plan.context)} tokens", "predicted", "from")
    for row in plan.rows:
        table.add_row(row.label, row.format_value(row.predicted), row.source)
    table.add_row("total", format_bytes(plan.total_bytes), "sum")
    return table


def _devices(placed: PlacedPlan) -> str:
    placement, device = placed.placement, placed.placement.device
    split = [
        f"{what} {n}"
        for what, n in (
            ("tensor parallel", placement.tensor_parallel),
            ("pipeline parallel", placement.pipeline_parallel),
        )
        if n > 1
    ]
    number = f"{placement.num_devices} x " if placement.num_devices > 1 else ""
    return f"on {number}{device.name}" + (f", {', '.join(split)}" if split else "") + f"; memory: {device.memory_rule}"


def _stages(placed: PlacedPlan) -> Table:
    table = _table("each device of a stage", "layers", "weights", "KV pool", "total", "left", "requests at once")
    for number, stage in enumerate(placed.stages, 1):
        held = (stage.row("weights"), stage.row("kv_pool"), stage.total_bytes, stage.free_bytes)
        requests = format_count(stage.max_requests)
        table.add_row(f"stage {number}", str(stage.num_layers), *(format_bytes(n) for n in held), requests)
    return table


def _verdict(plan: Plan) -> str:
    """Whether it fits, with both sides of the comparison that decides it."""
    if plan.budget_source == "limit asked about":
        source = "(the limit that was set)"
    else:
        source = f"available here ({plan.budget_source})" if plan.placed is None else f"of each {plan.budget_source}"
    needed = f"{format_bytes(plan.total_bytes)} and {format_bytes(plan.reserve_bytes)} in reserve"
    verdict = f"{'fits' if plan.fits else 'does not fit'}: {needed}, of {format_bytes(plan.budget_bytes)} {source}"
    if plan.placed is None:
        return verdict
    most = plan.placed.max_requests
    return f"{verdict}; room for {format_count(most)} requests of {format_count(plan.context)} tokens at once"


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
