"""The tables of `kvwise plan`, for people. Knows how a plan is read, not how it was made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvwise.cli.latency_tables import bounds_lines, latency_table
from kvwise.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from kvwise.planner.counterfactuals import Judgement
    from kvwise.planner.explain import Formula
    from kvwise.planner.placed import PlacedPlan
    from kvwise.planner.plan import Plan

_BAR_CHARS: Final = 36
_SHOWN_CHARS: Final = 200  # of a name, which a file may make as long as it likes


def render_plan(plan: Plan, console: Console) -> None:
    """What a person needs in ten seconds: does it fit, what fills it, how long it takes, what bounds it."""
    from kvwise.cli.output import printable

    active = plan.active_parameters
    some = f", {format_count(active)} of them active per token" if active and active != plan.parameters else ""
    counted = f"{format_count(plan.parameters)} parameters{some}"
    console.print(f"{printable(plan.model[:_SHOWN_CHARS])} ({plan.source}), {counted}", style="bold")
    if plan.placed is not None:
        console.print(_devices(plan.placed))
    console.print(_verdict(plan), style="bold" if plan.fits else "bold red")
    console.print(_waterfall(plan))
    if plan.placed is not None and len(plan.placed.stages) > 1:
        console.print(_stages(plan.placed))
    console.print(_kv_line(plan))
    if plan.latency is not None:
        console.print(latency_table(plan.latency))
    for note in plan.notes:
        console.print(f"note: {printable(note)}", style="dim")


def render_details(plan: Plan, console: Console) -> None:
    """Where each row is from, weights and K and V otherwise, and what bounds a step."""
    console.print(_ledger(plan))
    console.print(_weights(plan))
    console.print(_kv(plan))
    if plan.alternatives:
        console.print(_alternatives(plan))
    if plan.latency is not None:
        for line in bounds_lines(plan.latency):
            console.print(line)


def render_formulas(formulas: Sequence[Formula], console: Console) -> None:
    """Three lines each: what it is and comes to, the formula, the numbers put in."""
    from kvwise.cli.output import printable

    for formula in formulas:
        console.print(printable(f"{formula.name} = {formula.value}"), style="bold")
        for line in (formula.formula, formula.numbers):
            if line:
                console.print(printable(f"    {line}"))


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


def _waterfall(plan: Plan) -> Table:
    """Each row begins where the one above it ended; what is free at the end, or what is missing."""
    table = _table(_memory_title(plan), "bytes", "", " ")
    table.columns[3].justify = "left"
    whole = max(plan.budget_bytes, plan.total_bytes + plan.reserve_bytes, 1)
    parts = [(row.label, int(row.predicted or 0)) for row in plan.rows]
    parts.append(("in reserve", plan.reserve_bytes))
    end = 0
    for name, nbytes in parts:
        if nbytes:
            table.add_row(name, format_bytes(nbytes), f"{nbytes / whole:.1%}", _bar(end, nbytes, whole))
        end += nbytes
    free = plan.budget_bytes - end
    left = _bar(end, free, whole, "░") if free >= 0 else _bar(plan.budget_bytes, -free, whole, "▒")
    table.add_row("free" if free >= 0 else "missing", format_bytes(abs(free)), f"{abs(free) / whole:.1%}", left)
    table.add_row("there is", format_bytes(plan.budget_bytes), "", "")
    return table


def _bar(begin: int, nbytes: int, whole: int, mark: str = "█") -> str:
    """From `begin` on, as long as its share of the width; a sliver for anything at all."""
    first = min(_BAR_CHARS - 1, round(_BAR_CHARS * begin / whole))
    length = min(_BAR_CHARS - first, round(_BAR_CHARS * (begin + nbytes) / whole) - first)
    return " " * first + (mark * length or "▏")


def _kv_line(plan: Plan) -> str:
    where = (
        ""
        if plan.placed is None or plan.placed.host_bytes == 0
        else (f"; the host holds {format_bytes(plan.placed.host_bytes)} of embedding")
    )
    return f"weights in {plan.weight_type}; {_kv_title(plan)}{where}"


def _memory_title(plan: Plan) -> str:
    where = (
        "" if plan.placed is None else " of each device" if len(plan.placed.stages) == 1 else " of the fullest device"
    )
    return f"memory{where} at {plan.batch} x {format_count(plan.context)} tokens"


def _ledger(plan: Plan) -> Table:
    table = _table(_memory_title(plan), "predicted", "from")
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
    return (
        f"on {number}{device.name}"
        + (f", {', '.join(split)}" if split else "")
        + f", {placed.policy.name} policy; memory: {device.memory_rule}"
    )


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
    needed = format_bytes(plan.total_bytes)
    if plan.reserve_bytes:
        needed += f" and {format_bytes(plan.reserve_bytes)} in reserve"
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


def _kv_title(plan: Plan) -> str:
    kv = plan.kv
    growing = plan.kv_bytes_per_token_growing
    grows = "" if growing == plan.kv_bytes_per_token else f", {format_bytes(growing)} of it in layers without a window"
    beside = f"; beside it {format_bytes(kv.index_bytes_per_token)} of index keys" if kv.index_bytes_per_token else ""
    return f"KV cache in {kv.kv_type.name}: {format_bytes(plan.kv_bytes_per_token)} per token{grows}{beside}"


def _kv(plan: Plan) -> Table:
    title = _kv_title(plan)
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
