"""From series of samples to the JSON that is kept and the table that is read. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final

from .cells import Cell, Entrant
from .harness import Series

MIB: Final = 2**20


def rows(
    model: str,
    cell: Cell,
    entrants: Sequence[Entrant],
    series: Sequence[Series],
    work: dict[str, dict[str, int] | None],
    repeats: int,
) -> list[dict[str, Any]]:
    """One row per entrant. `work`: by label, as facts.py counts it."""
    found = {s.label: s for s in series}
    out = [_row(model, cell, e, found[e.label], work.get(e.label), repeats) for e in entrants if e.label in found]
    peers = [row for row in out if not row["ours"] and row["median"] is not None]
    best = max(peers, key=lambda row: _speed(cell, row["median"]), default=None)
    for row in out:
        known = best is not None and row["median"] is not None
        row["best_peer"] = best["label"] if best is not None else None
        row["times_best_peer"] = _speed(cell, row["median"]) / _speed(cell, best["median"]) if best and known else None
    return out


def _row(
    model: str, cell: Cell, entrant: Entrant, series: Series, work: dict[str, int] | None, repeats: int
) -> dict[str, Any]:
    kept = series.kept(repeats)
    values = [sample.value for sample in kept]
    median = statistics.median(values) if values else None
    return {
        "model": model,
        "weights": entrant.weights,
        "cell": cell.name,
        "kind": cell.kind,
        "context": cell.context,
        "batch": cell.batch,
        "label": entrant.label,
        "ours": entrant.ours,
        "unit": {"decode": "tokens/s", "memory": "bytes"}.get(cell.kind, "s"),
        "median": median,
        "low": min(values, default=None),
        "high": max(values, default=None),
        "count": len(values),
        "disturbance": max((sample.disturbance for sample in kept), default=None),
        "work": work,
        "error": series.error,
        "ids": series.ids[:64],
        "samples": [[s.value, round(s.foreign, 4), round(s.stolen, 4)] for s in series.samples],
    }


def _speed(cell: Cell, value: float) -> float:
    """More is better."""
    return 1 / value if cell.lower_is_better else value


def markdown(results: dict[str, Any]) -> str:
    """A table per model and kind of weights: cells down, entrants across, and ours beside the best peer."""
    machine = results["machine"]
    lines = [
        f"{machine['cpu']}, {machine['threads']} threads, {machine['memory_bytes'] / 2**30:.0f} GiB"
        f" ({', '.join(machine['flags'])}).",
        "",
        "Prefill and cold start in seconds to the first token, decode in tokens/s, memory in MiB; median, and half of"
        " the spread in percent. ×: times the best peer's speed. %: of this machine's limit for the entrant's own"
        " bytes and arithmetic. !: others used more than the allowed share of the machine.",
    ]
    for model, weights in dict.fromkeys((row["model"], row["weights"]) for row in results["rows"]):
        chosen = [row for row in results["rows"] if row["model"] == model and row["weights"] == weights]
        lines += ["", f"### {model}, {weights}", "", *_table(chosen, results["effort"]["limit"])]
    return "\n".join(lines) + "\n"


def _table(chosen: Sequence[dict[str, Any]], limit: float) -> Iterable[str]:
    labels = list(dict.fromkeys(row["label"] for row in chosen))
    by_place = {(row["cell"], row["label"]): row for row in chosen}
    yield "| | " + " | ".join(labels) + " |"
    yield "| --- |" + " ---: |" * len(labels)
    for cell in dict.fromkeys(row["cell"] for row in chosen):
        cells = [_cell_text(by_place.get((cell, label)), limit) for label in labels]
        yield f"| {cell} | " + " | ".join(cells) + " |"


def _cell_text(row: dict[str, Any] | None, limit: float) -> str:
    if row is None:
        return ""
    if row["median"] is None:
        return "failed" if row["error"] else "–"
    value = row["median"] / MIB if row["kind"] == "memory" else row["median"]
    spread = 50 * (row["high"] - row["low"]) / row["median"]
    text = f"{_digits(value)} ±{spread:.0f}" if row["count"] > 1 else _digits(value)
    text += "!" if row["disturbance"] > limit else ""
    notes = [f"{row['times_best_peer']:.2f}×"] if row["ours"] and row["times_best_peer"] else []
    notes += [f"{100 * row['of_limit']:.0f} %"] if row["of_limit"] else []
    text = f"{text} ({', '.join(notes)})" if notes else text
    return f"**{text}**" if row["ours"] else text


def _digits(value: float) -> str:
    """Three that count."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
