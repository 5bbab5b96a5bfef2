"""What the study of memory finds, in words and rows, from its results alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from kvwise.ledger.rows import LedgerRow
from kvwise.studies.study import Conclusion, Results
from kvwise.units import ceil_div, format_bytes, format_count, format_seconds


def conclude(results: Results) -> Conclusion:
    counted, watched = results["counted"], results["watched"]
    at = counted["kv_passes_weights_at_tokens"]
    crossing = measured_crossing(watched)
    finding = (
        f"What fills memory is tokens: K and V pass {watched['model']}'s weights at {predicted_crossing(watched):,} "
        f"tokens{'' if crossing is None else f' (measured: {crossing:,.0f})'}, and those of {counted['model']} at "
        f"{at['16 bits']:,} in 16 bits, {at['4 bits']:,} in 4"
    )
    return Conclusion(finding, _rows(watched), (*_counted_points(counted), *_watched_points(watched)))


def predicted_crossing(watched: dict[str, Any]) -> int:
    """Tokens whose K and V take as much as the weights."""
    return ceil_div(watched["predicted"]["weights"], watched["kv_bytes_per_token"])


def measured_crossing(watched: dict[str, Any]) -> float | None:
    """Tokens at which resident K and V pass resident weights, straight between two samples; None where they don't."""
    points = [
        (s["tokens"], s["resident_bytes"]["kv_pool"] - s["resident_bytes"]["weights"]) for s in watched["samples"]
    ]
    for (tokens, lacking), (more, beyond) in pairwise(points):
        if lacking < 0 <= beyond:
            return float(tokens + (more - tokens) * -lacking / (beyond - lacking))
    return None


def _rows(watched: dict[str, Any]) -> tuple[LedgerRow, ...]:
    predicted, (empty, *_, full) = watched["predicted"], watched["samples"]
    resident, rss = full["resident_bytes"], full["rss_source"]
    kv_bytes = full["tokens"] * watched["kv_bytes_per_token"]
    crossing = measured_crossing(watched)
    loaded = predicted["weights"] + predicted["tables"] + predicted["runtime"]
    return (
        LedgerRow("K and V pass the weights at", predicted_crossing(watched),
                  None if crossing is None else round(crossing), "tokens", "formula / pagemap"),
        LedgerRow("weights", predicted["weights"], resident["weights"], "B", "formula / pagemap"),
        LedgerRow("KV pool, no token yet", 0, empty["resident_bytes"]["kv_pool"], "B", "formula / pagemap"),
        LedgerRow(f"K and V of {full['tokens']:,} tokens", kv_bytes, resident["kv_pool"], "B", "formula / pagemap"),
        LedgerRow("the same before a token came", kv_bytes, empty["allocated_bytes"]["kv_pool"], "B",
                  "formula / allocator"),
        LedgerRow("process, loaded", loaded, empty["rss_bytes"], "B", f"formula / {rss}"),
        LedgerRow("process, pool full", sum(predicted.values()), full["rss_bytes"], "B", f"formula / {rss}"),
        LedgerRow("process, closed", predicted["runtime"], watched["closed"]["rss_bytes"], "B",
                  f"RSS before load / {rss}"),
    )  # fmt: skip


def _counted_points(counted: dict[str, Any]) -> list[str]:
    weights, memory = counted["weight_bytes"], counted["machine"]["bytes"]
    widths = ", ".join(f"{format_bytes(nbytes)} in {name}" for name, nbytes in weights.items())
    lines = [
        f"Weights of {counted['model']}: {widths}. K and V: {format_bytes(counted['kv_bytes_per_token'])} a token, "
        f"whoever it belongs to: a context of 8K in a batch of 8 fills as much as 2K in a batch of 32."
    ]
    fits = {name: [c for c in counted["cells"] if nbytes + c["kv_bytes"] <= memory] for name, nbytes in weights.items()}
    lines.append(
        f"The sum of both against the {format_bytes(memory)} of this machine: of the {len(counted['cells'])} "
        "combinations " + ", ".join(f"{len(cells)} fit with weights in {name}" for name, cells in fits.items()) + "."
    )
    timed = [c for c in fits["4 bits"] if c["predicted_tpot_s"]]
    if timed:
        slow, fast = (choose(timed, key=lambda c: c["predicted_tpot_s"]) for choose in (max, min))
        slow_s, fast_s = (format_seconds(cell["predicted_tpot_s"]) for cell in (slow, fast))
        lines.append(
            "That line decides nothing alone. It knows no time: of those that fit in 4 bits, a token takes "
            f"{fast_s} at {_cell(fast)} and {slow_s} at {_cell(slow)} (predicted for {counted['run_type']} here). It "
            "takes every request to be as long as the longest, and it leaves out what else a process holds:"
        )
    return lines


def _cell(cell: dict[str, Any]) -> str:
    return f"{cell['context'] // 1024}K × {cell['batch']}"


def _watched_points(watched: dict[str, Any]) -> list[str]:
    (empty, *_, full), predicted = watched["samples"], watched["predicted"]
    formula = predicted["weights"] + full["tokens"] * watched["kv_bytes_per_token"]
    unused = empty["allocated_bytes"]["kv_pool"] - empty["resident_bytes"]["kv_pool"]
    residual = next(row["measured"] for row in watched["ledger"] if row["name"] == "residual")
    rest = predicted["arena"] + predicted["logits"] + predicted["tables"]
    return [
        f"{watched['model']} with {format_count(full['tokens'])} tokens: weights, K and V are {format_bytes(formula)}, "
        f"the process holds {format_bytes(full['rss_bytes'])}. Between the two lie interpreter and libraries "
        f"({format_bytes(predicted['runtime'])}), activations, logits and tables ({format_bytes(rest)}), and "
        f"{format_bytes(residual)} that no row explains.",
        f"The allocator had given out the whole pool before the first token: {format_bytes(unused)} of it were not "
        f"there yet. A page comes when it is first written, so RSS starts below the allocator and ends above it.",
        "Tokens whose requests have ended stay in the pool, to be found again: RSS falls only when it is closed.",
    ]
