"""`kvwise trace`: step by step, what was computed, what was kept, and what keeping it saved."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvwise.cli import options as o

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kvwise.engine.trace import TraceRow
    from kvwise.tokenizer import Tokenizer


def trace_command(
    arguments: Annotated[list[str], o.Arguments],
    max_tokens: o.MaxTokens = 16,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Keep no K and V: compute everything anew.")] = False,
    raw: o.Raw = False,
    threads: o.Threads = None,
    kv_dtype: o.KvDtype = "f16",
    weights: o.Weights = None,
    backend: o.BackendName = "native",
    as_json: o.Json = False,
) -> None:
    """Show each step: its kind, the positions computed, the token chosen, the cache after it, time and bytes.

    Beside it stands what the step would have computed without a cache; --no-cache really runs so.
    """
    from kvwise.cli.output import people, print_json
    from kvwise.cli.session import encode_prompt, load, model_and_prompt, open_model
    from kvwise.engine.admission import check_fits
    from kvwise.engine.model import Settings
    from kvwise.engine.trace import trace_rows
    from kvwise.spec.request import Request, SamplingParams

    sampling = SamplingParams(max_tokens=max_tokens)
    model, prompt = model_and_prompt(arguments)
    console = people()
    with ExitStack() as stack:
        opened = stack.enter_context(open_model(model, console, backend=backend, kv_dtype=kv_dtype, weights=weights))
        prompt_ids = encode_prompt(opened, prompt, raw=raw)
        context = min(len(prompt_ids) + max_tokens - 1, opened.spec.max_positions)
        settings = Settings(
            max_context=context,
            max_step_tokens=context if no_cache else Settings().max_step_tokens,
            threads=threads,
            keep_kv=not no_cache,
        )
        check_fits(len(prompt_ids), max_tokens, opened.room(settings))
        engine = load(opened, settings, console, stack).engine
        engine.add_request(Request("trace", tuple(prompt_ids), sampling))
        rows = list(trace_rows(engine.run(), opened.program, opened.kv, opened.weight_bytes.__getitem__))
        output = engine.outputs["trace"]
        if as_json:
            print_json(_as_json(rows, prompt_ids, list(output.ids), output.finish_reason, cached=not no_cache))
        else:
            render(rows, opened.tokenizer, cached=not no_cache)


def _as_json(
    rows: Sequence[TraceRow], prompt_ids: list[int], ids: list[int], finish_reason: str | None, *, cached: bool
) -> dict[str, Any]:
    return {
        "cached": cached,
        "prompt_ids": prompt_ids,
        "ids": ids,
        "finish_reason": finish_reason,
        "steps": [asdict(row) for row in rows],
    }


def render(rows: Sequence[TraceRow], tokenizer: Tokenizer, *, cached: bool) -> None:
    """The table and the line that sums it up, on stdout."""
    from rich.table import Table

    from kvwise.cli.output import people
    from kvwise.units import format_bytes, format_seconds

    console = people(stderr=False)
    table = Table(title="with a KV cache" if cached else "without a KV cache: every step computes all positions")
    for name in ("step", "positions computed", "token chosen", "in cache after", "time", "read"):
        table.add_column(name, justify="left" if name in ("step", "token chosen") else "right")
    if cached:
        table.add_column("without a cache", justify="right")
    for row in rows:
        shown = (
            "" if row.token_id is None else f"{row.token_id} {tokenizer.decode([row.token_id], skip_special=False)!r}"
        )
        cells = [
            row.kind,
            _span(row.first_position, row.last_position),
            shown,
            str(row.cached_tokens if cached else 0),
            format_seconds(row.measured_s),
            format_bytes(row.read_bytes),
        ]
        if cached:
            cells.append(f"{_span(0, row.uncached_positions - 1)}, {format_bytes(row.uncached_read_bytes)}")
        table.add_row(*cells)
    console.print(table)
    _summarise(rows, console, cached=cached)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _summarise(rows: Sequence[TraceRow], console: Console, *, cached: bool) -> None:
    computed = sum(row.last_position - row.first_position + 1 for row in rows)
    anew = sum(row.uncached_positions for row in rows)
    flops, uncached_flops = sum(r.flops for r in rows), sum(r.uncached_flops for r in rows)
    if cached:
        console.print(
            f"computed {computed} positions, {flops / 1e9:.2f} GFLOP; without a cache it would have been {anew} "
            f"positions, {uncached_flops / 1e9:.2f} GFLOP: {uncached_flops / flops:.1f} times the work."
        )
    else:
        console.print(f"computed {computed} positions, {flops / 1e9:.2f} GFLOP, nothing kept between steps.")
