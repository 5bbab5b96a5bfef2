"""`kvwise run`: the cost, the answer, the receipt."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from kvwise.cli import options as o

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kvwise.engine.state import RequestOutput
    from kvwise.errors import NotMeasured
    from kvwise.ledger.memory import MemoryPlan
    from kvwise.ledger.rows import LedgerRow
    from kvwise.planner.machine import MachineForecast


def run_command(
    arguments: Annotated[Optional[list[str]], o.Arguments] = None,  # noqa: UP045
    max_tokens: o.MaxTokens = 256,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    seed: o.Seed = None,
    stop: o.Stop = None,
    min_tokens: o.MinTokens = 0,
    ignore_eos: o.IgnoreEos = False,
    raw: o.Raw = False,
    context: o.Context = None,
    threads: o.Threads = None,
    kv_dtype: o.KvDtype = "f16",
    weights: o.Weights = None,
    weights_cache: o.WeightsCache = None,
    backend: o.BackendName = "native",
    force: Annotated[bool, typer.Option("--force", help="Load it even where it does not fit, and say so.")] = False,
    as_json: o.Json = False,
) -> None:
    """Answer PROMPT (or standard input): the cost is told before the first token and measured after the last."""
    from kvwise.cli.output import answer, people, print_json
    from kvwise.cli.session import encode_prompt, forecast, load, model_and_prompt, open_model, tell_kept_file
    from kvwise.engine.admission import check_fits
    from kvwise.engine.model import Settings
    from kvwise.engine.receipt import receipt
    from kvwise.errors import NotMeasured
    from kvwise.spec.request import Request
    from kvwise.units import format_bytes

    sampling = o.sampling_params(max_tokens, min_tokens, temperature, top_k, top_p, min_p, seed, stop, ignore_eos)
    model, prompt = model_and_prompt(arguments or [])
    console = people()
    with ExitStack() as stack:
        opened = stack.enter_context(open_model(model, console, backend=backend, kv_dtype=kv_dtype, weights=weights))
        prompt_ids = encode_prompt(opened, prompt, raw=raw)
        needed = len(prompt_ids) + max_tokens - 1
        most = min(needed, opened.spec.max_positions)
        settings = Settings(
            max_context=most if context is None else context, threads=threads, force=force, weights_cache=weights_cache
        )
        check_fits(len(prompt_ids), max_tokens, opened.room(settings))
        plan = opened.checked_plan(settings)
        expected = forecast(opened, settings, len(prompt_ids), max_tokens)
        if not as_json:
            console.print(plan_line(plan, expected), style="dim")
            tell_kept_file(opened, settings, console)
            if not plan.fits:
                console.print(f"forced: it does not fit {format_bytes(plan.budget_bytes)}")
        loaded = load(opened, settings, console, stack)
        loaded.engine.add_request(Request("run", tuple(prompt_ids), sampling))
        for report in loaded.engine.run():
            if not as_json:
                answer(report.parts[0].text)
        output = loaded.engine.outputs["run"]
        told = None if isinstance(expected, NotMeasured) else expected.told
        rows = receipt(loaded, told, output)
        if not isinstance(expected, NotMeasured):
            expected.machine.note_run(expected.raw, len(output.prompt_ids), output.ttft_s, output.tpot_s)
        if as_json:
            print_json(run_json(output, rows, forced=not plan.fits))
        else:
            answer("\n")
            print_receipt(rows, output, console)


def plan_line(plan: MemoryPlan, expected: MachineForecast | NotMeasured) -> str:
    """One line with the plan, before anything is loaded."""
    from kvwise.errors import NotMeasured
    from kvwise.units import format_bytes, format_seconds

    needs = plan.needs
    memory = (
        f"plan: {format_bytes(plan.total_bytes)} = weights {format_bytes(needs.weights_bytes)} + KV "
        f"{format_bytes(needs.kv_pool_bytes)} ({plan.options.limits.max_context} tokens x "
        f"{format_bytes(plan.kv.bytes_per_token)}) + activations "
        f"{format_bytes(needs.arena_bytes + needs.logits_bytes + needs.tables_bytes)} + runtime "
        f"{format_bytes(plan.predicted_runtime_bytes)}"
    )
    if isinstance(expected, NotMeasured):
        return f"{memory}; time: {expected.problem}"
    told = expected.told
    ttft = format_seconds(told.predicted_ttft_s)
    tpot = "" if told.predicted_tpot_s is None else f", then {format_seconds(told.predicted_tpot_s)} per token"
    return f"{memory}; first of at most {told.output_tokens} tokens in {ttft}{tpot}"


def run_json(output: RequestOutput, rows: Sequence[LedgerRow], *, forced: bool) -> dict[str, Any]:
    """forced: it was loaded although the plan said that it does not fit."""
    return {
        "text": output.text,
        "prompt_ids": list(output.prompt_ids),
        "ids": list(output.ids),
        "finish_reason": output.finish_reason,
        "ledger": [row.to_json() for row in rows],
        "forced": forced,
    }


def _difference(row: LedgerRow) -> str:
    """How far the prediction was off. What is reserved for the largest step or context is touched as far as needed."""
    if row.error is None or row.name == "runtime":
        return ""
    if row.name in ("kv_pool", "arena", "logits", "tables") and row.measured != row.predicted:
        return f"{1 / (1 + row.error):.0%} touched"
    return f"{row.error:+.1%}"


def print_receipt(rows: Sequence[LedgerRow], output: RequestOutput, console: Console) -> None:
    """The table of predicted and measured, and a line about the tokens."""
    from rich.table import Table

    table = Table(title="receipt", title_justify="left")
    for name in ("", "predicted", "measured", "difference"):
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        table.add_row(row.label, row.format_value(row.predicted), row.format_value(row.measured), _difference(row))
    console.print(table)
    speed = "" if output.tpot_s is None else f", {1 / output.tpot_s:.1f} tokens/s after the first"
    console.print(
        f"{len(output.prompt_ids)} prompt tokens, {len(output.ids)} output tokens ({output.finish_reason}){speed}",
        style="dim",
    )
