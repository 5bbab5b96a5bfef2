"""What the study of KV heads finds, in words and rows, from its results alone."""

from __future__ import annotations

from typing import Any

from kvwise.ledger.rows import LedgerRow
from kvwise.studies.study import Conclusion, Results
from kvwise.units import format_bytes, format_seconds


def conclude(results: Results) -> Conclusion:
    timed, changed = results["timed"], results["changed"]
    context = timed[0]["tpot"][-1]["context"]
    steps = ", ".join(f"{model['name']} {format_seconds(model['tpot'][-1]['measured_s'])}" for model in timed)
    variants = {row["name"]: row for row in changed["variants"]}
    before, after = variants["as trained"], variants["their mean"]
    finding = (
        f"With {', '.join(str(model['kv_heads']) for model in timed)} KV heads a token at {context:,} tokens takes "
        f"{steps}; but averaging the {before['kv_heads']} of a trained model into {after['kv_heads']} takes its "
        f"perplexity from {before['perplexity']:.0f} to {after['perplexity']:,.0f}"
    )
    rows = tuple(_row(model, point) for model in timed for point in (model["tpot"][0], model["tpot"][-1]))
    return Conclusion(finding, rows, tuple(_points(results, variants)))


def _row(model: dict[str, Any], point: dict[str, Any]) -> LedgerRow:
    label = f"TPOT, {model['name']} ({model['kv_heads']} KV heads), {point['context']:,} tokens"
    source = "price on the device profile / clock, median of rounds"
    return LedgerRow(label, point["predicted_s"], point["measured_s"], "s", source)


def seconds_per_token(model: dict[str, Any]) -> float:
    """What each further token of context adds to a step, from the shortest to the longest that was timed."""
    first, last = model["tpot"][0], model["tpot"][-1]
    return float((last["measured_s"] - first["measured_s"]) / (last["context"] - first["context"]))


def _points(results: Results, variants: dict[str, Any]) -> list[str]:
    timed, changed = results["timed"], results["changed"]
    most, *_, least = timed
    kept = ", ".join(f"{format_bytes(m['kv_bytes_per_token'])} with {m['kv_heads']} ({m['name']})" for m in timed)
    slopes = ", ".join(f"{format_seconds(1000 * seconds_per_token(m))} with {m['kv_heads']}" for m in timed)
    copies, mean, first = variants["each copied 3 times"], variants["their mean"], variants["the first alone"]
    return [
        f"Each of the three has {most['parameters'] / 1e6:.0f} million parameters: what the projections to K and V "
        f"save, the MLP has more. A token keeps {kept}.",
        f"Every thousand tokens of context add to a step: {slopes}. Bytes fall "
        f"{most['kv_bytes_per_token'] / least['kv_bytes_per_token']:.0f}-fold and time less: as many query heads are "
        f"multiplied with whatever is kept, so arithmetic stays when reading shrinks.",
        f"More heads for a trained model cost nothing but memory: with each head of {changed['model']} "
        f"copied 3 times, logits differ by {copies['divergence']:g} nats and every token is the same "
        f"({copies['top_1']:.0%}), at {format_bytes(copies['kv_bytes_per_token'])} a token.",
        f"Fewer heads are another model: their mean is {mean['divergence']:.1f} nats from what was trained and picks "
        f"the same token in {mean['top_1']:.0%} of places, the first alone is {first['divergence']:.1f} nats away. "
        f"Query heads were trained against the keys that they got.",
    ]
