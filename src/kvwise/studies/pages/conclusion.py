"""What the pages study finds, in words and rows, from its results alone."""

from __future__ import annotations

from typing import Any, Final

from kvwise.ledger.rows import LedgerRow
from kvwise.studies.study import Conclusion, Results
from kvwise.units import format_bytes, format_seconds

_FORMULA: Final = "formula: pool / mean held"


def conclude(results: Results) -> Conclusion:
    policies = {row["name"]: row for row in results["policies"]}
    engine, pool = results["engine"], results["sizes"]["pool_tokens"]
    own = policies[engine["name"]]
    longest, oracle = policies["the maximum"], policies["an oracle"]
    finding = (
        f"Blocks of {own['block_tokens']} tokens hold {own['requests']:.0f} requests in a pool where room for the "
        f"longest holds {longest['requests']:.0f}, and even knowing every length beforehand {oracle['requests']:.0f}"
    )
    rows = [
        LedgerRow(f"requests held: {_named(row)}", row["predicted_requests"], row["requests"], "1", _by(row))
        for row in (*results["policies"], engine)
        if row["block_tokens"] in (None, 1, own["block_tokens"], 256)
    ]
    rows.append(
        LedgerRow(
            "slots empty in the last block", (own["block_tokens"] - 1) / 2, _empty_slots(engine, pool), "1",
            "formula: (block - 1) / 2 / the engine's cache",
        )
    )  # fmt: skip
    if results["fitted"] is not None:
        by = "simulation of lengths fitted to Azure's / simulation of the trace"
        rows.append(LedgerRow(f"requests held: {_named(own)}", results["fitted"], own["requests"], "1", by))
    return Conclusion(finding, tuple(rows), tuple(_points(results, policies)))


def _points(results: Results, policies: dict[str, Any]) -> list[str]:
    own, oracle = policies[results["engine"]["name"]], policies["an oracle"]
    longest, smallest = policies["the maximum"], policies[str(min(s for s, _ in results["bookkeeping_s"]))]
    taken = dict(results["bookkeeping_s"])
    return [
        f"{results['requests']:,} requests with {results['mean_prompt_tokens']:,.0f} prompt and "
        f"{results['mean_output_tokens']:,.0f} output tokens on average ({results['lengths']}) wait for a pool of "
        f"{results['sizes']['pool_tokens']:,} tokens: {format_bytes(results['pool_bytes'])} of Llama 3.1 8B.",
        f"Room for the longest ({results['sizes']['longest']:,} tokens) leaves {longest['internal']:.0%} of the pool "
        f"given out and never used.",
        f"With perfect foresight {oracle['later']:.0%} waits for tokens that come later, and {oracle['external']:.0%} "
        f"lies in holes that are too small for whoever is next.",
        f"Blocks of {own['block_tokens']} keep tokens in {own['stored']:.1%} of the pool and waste "
        f"{own['internal']:.1%} of it inside blocks; {own['preempted']:.1%} of requests had to give way once.",
        f"Smaller blocks gain little and cost time: with {smallest['block_tokens']} token a block "
        f"{smallest['requests']:.0f} requests fit, and each adds {format_seconds(taken[smallest['block_tokens']])} of "
        f"bookkeeping to a step at {results['sizes']['context']:,} tokens, against "
        f"{format_seconds(taken[own['block_tokens']])}.",
    ]


def _named(row: dict[str, Any]) -> str:
    if row["block_tokens"] is None:
        return f"by {row['name']}"
    return f"blocks of {row['block_tokens']}" + (", the engine" if row["kind"] == "engine" else "")


def _by(row: dict[str, Any]) -> str:
    return f"{_FORMULA} / {'scheduler and cache' if row['kind'] == 'engine' else 'simulation'}"


def _empty_slots(row: dict[str, Any], pool: int) -> float:
    return float(row["internal"] * pool / row["requests"])
