"""What the study of one layer in three phases finds, in words and rows, from its results alone."""

from __future__ import annotations

from typing import Any

from kvwise.ledger.rows import LedgerRow
from kvwise.studies.study import Conclusion, Results
from kvwise.units import format_bytes, format_count, format_seconds


def conclude(results: Results) -> Conclusion:
    training, prefill, decode = results["phases"]
    weights = training["kept"][0]["predicted_bytes"]
    finding = (
        f"Beside its weights of {format_bytes(weights)} the same layer keeps "
        f"{format_bytes(kept_bytes(training) - weights)} to train on {training['positions']} tokens and "
        f"{format_bytes(kept_bytes(prefill) - weights)} to serve them, K and V; a prefill does "
        f"{intensity(prefill):.0f} FLOPs for each byte that it moves and rules TTFT, a decode step "
        f"{intensity(decode):.2g} and rules TPOT"
    )
    return Conclusion(finding, (*_memory_rows(results), *_time_rows(results)), tuple(_points(results)))


def kept_bytes(phase: dict[str, Any]) -> int:
    """All parts, predicted."""
    return sum(part["predicted_bytes"] for part in phase["kept"])


def intensity(phase: dict[str, Any]) -> float:
    """FLOPs for each byte that is moved."""
    return float(phase["flops"] / phase["moved_bytes"])


def _memory_rows(results: Results) -> list[LedgerRow]:
    rows = [(phase, part) for phase in results["phases"] for part in phase["kept"] if part["measured_bytes"]]
    return [
        LedgerRow(
            f"{phase['phase']}: {part['part'].replace('kv', 'K and V')}",
            part["predicted_bytes"],
            part["measured_bytes"],
            "B",
            part["source"],
        )
        for phase, part in rows
    ]


def _time_rows(results: Results) -> list[LedgerRow]:
    sources = {"training": "numpy's measured rates / clock"}
    return [
        LedgerRow(
            f"{phase['phase']}: a step of {phase['positions']} position{'s' if phase['positions'] > 1 else ''}",
            phase["predicted_s"],
            phase["measured_s"],
            "s",
            sources.get(phase["phase"], "price on the device profile / clock"),
        )
        for phase in results["phases"]
    ]


def _points(results: Results) -> list[str]:
    training, prefill, decode = results["phases"]
    parts = {part["part"]: part["predicted_bytes"] for part in training["kept"]}
    kv_bytes = prefill["kept"][-1]["predicted_bytes"]
    sizes = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in parts.items())
    each = training["measured_s"] / training["positions"], prefill["measured_s"] / prefill["positions"]
    lines = [
        f"The layer has {format_count(results['parameters'])} parameters, here in float32.",
        f"Training keeps {sizes}: gradients and moments as long as it lasts, activations from forward to backward, of "
        f"which {_share_of_pairs(results):.0%} are probabilities of pairs of positions.",
        f"Serving keeps K and V, {format_bytes(kv_bytes)}, {parts['activations'] / kv_bytes:.0f} times less than "
        "the activations: they are all that a later position asks of an earlier one.",
        f"All {training['positions']} positions are computed at once in training and in prefill, because all of them "
        f"are known; a position costs {format_seconds(each[0])} in training, {format_seconds(each[1])} in prefill, and "
        f"{format_seconds(decode['measured_s'])} in decode, which knows only one at a time and reads the same weights "
        "for it.",
    ]
    if results["roof"]:
        ridge = results["roof"]["flops_per_s"] / results["roof"]["bytes_per_s"]
        lines.append(
            f"With such weights this machine can do {ridge:.1f} FLOPs in the time in which it reads a byte: decode "
            f"lies {ridge / intensity(decode):.0f} times below, prefill {intensity(prefill) / ridge:.0f} times above."
        )
    return lines


def _share_of_pairs(results: Results) -> float:
    sizes = results["sizes"]
    pairs = 4 * sizes["q_heads"] * sizes["tokens"] ** 2
    return float(pairs / next(p["predicted_bytes"] for p in results["phases"][0]["kept"] if p["part"] == "activations"))
