"""Latency for people: the two latencies with their intervals, and what bounds prefill and decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwise.units import format_count, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from kvwise.planner.latency import Estimate, Latency, Regime


def latency_table(latency: Latency) -> Table:
    """TTFT, TPOT, the response and throughput, each with its interval."""
    from rich.table import Table

    under = "" if latency.engine == "kvwise" else f" under {latency.engine}"
    waiting = "" if latency.running == latency.concurrency else f", {latency.running} of them in the cache"
    title = (
        f"latency on {latency.machine}{under}: {format_count(latency.prompt_tokens)} + "
        f"{format_count(latency.output_tokens)} tokens, {latency.concurrency} at once{waiting}"
    )
    table = Table(title=title, title_justify="left")
    for name in ("", "predicted", "between", "and", "bound by"):
        table.add_column(name, justify="left" if name in ("", "bound by") else "right")
    table.add_row("first token", *_seconds(latency.ttft_s), _bound(latency.prefill))
    if latency.tpot_s is not None:
        table.add_row("each further token", *_seconds(latency.tpot_s), _bound(latency.decode))
    table.add_row("response", *_seconds(latency.response_s))
    rate = latency.output_tokens_per_s
    table.add_row("tokens/s of all", *(f"{value:,.1f}" for value in (rate.value, rate.low, rate.high)))
    return table


def _seconds(estimate: Estimate) -> tuple[str, str, str]:
    return format_seconds(estimate.value), format_seconds(estimate.low), format_seconds(estimate.high)


def _bound(regime: Regime) -> str:
    reading = f", {regime.kv_read_share:.0%} reading K and V" if regime.phase == "decode" else ""
    return f"{regime.bound}{reading}"


def bounds_lines(latency: Latency) -> list[str]:
    """A line each for prefill and decode, one for where decode turns, and where the intervals are from."""
    lines = [_regime(latency.prefill), _regime(latency.decode)]
    turns = latency.matmul_turning_batch
    if turns is not None:
        whole = latency.turning_batch
        step = "the step never is: K and V outgrow them" if whole is None else f"the step from {format_count(whole)}"
        lines.append(f"decode: matmuls are bound by arithmetic from a batch of {format_count(turns)}, {step}")
    return [*lines, f"intervals: {latency.interval_source}"]


def _regime(regime: Regime) -> str:
    largest = sorted(regime.shares, key=lambda share: -share.share)[:3]
    parts = ", ".join(f"{share.kind} {share.share:.0%} ({share.bound})" for share in largest)
    return (
        f"{regime.phase} of {format_count(regime.tokens)} x {format_count(regime.context)}: "
        f"{format_seconds(regime.predicted_s)}, bound by {regime.bound}, "
        f"{regime.arithmetic_intensity:.1f} FLOP per byte, {regime.kv_read_share:.0%} reading K and V: {parts}"
    )
