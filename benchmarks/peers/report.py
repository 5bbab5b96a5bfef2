"""From series of samples to the JSON that is kept and the table that is read. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final

from kvwise.units import GB

from .cells import ENTRANTS, Cell, Entrant
from .harness import Series

MIB: Final = 2**20


def rows(
    model: str,
    cell: Cell,
    entrants: Sequence[Entrant],
    series: Sequence[Series],
    work: dict[str, dict[str, int] | None],
) -> list[dict[str, Any]]:
    """One row per entrant. `work`: by label, as facts.py counts it."""
    found = {s.label: s for s in series}
    out = [_row(model, cell, e, found[e.label], work.get(e.label)) for e in entrants if e.label in found]
    peers = [row for row in out if not row["ours"] and row["median"] is not None]
    best = max(peers, key=lambda row: _speed(cell, row["median"]), default=None)
    for row in out:
        known = best is not None and row["median"] is not None
        row["best_peer"] = best["label"] if best is not None else None
        row["times_best_peer"] = _speed(cell, row["median"]) / _speed(cell, best["median"]) if best and known else None
    return out


def _row(model: str, cell: Cell, entrant: Entrant, series: Series, work: dict[str, int] | None) -> dict[str, Any]:
    kept = series.kept()
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
        "wanted": series.wanted,
        "disturbance": max((sample.disturbance for sample in kept), default=None),
        "work": work,
        "error": series.error,
        "ids": series.ids[:16],
        "samples": [[s.value, round(s.foreign, 4), round(s.stolen, 4)] for s in series.samples],
    }


def _speed(cell: Cell, value: float) -> float:
    """More is better."""
    return 1 / value if cell.lower_is_better else value


def markdown(results: dict[str, Any]) -> str:
    """A table per model and kind of weights: cells down, entrants across, and ours beside the best peer."""
    lines = [
        describe(results),
        "",
        "Prefill and cold start in seconds to the first token, decode in tokens/s, memory in MiB; median, and half of"
        " the spread in percent. ×: times the best peer's speed, or its bytes in ours. %: of this machine's limit for"
        " the entrant's own bytes and arithmetic. !: others used more than the allowed share of the machine."
        " n: samples, where a peer is so slow that it gave fewer.",
    ]
    for model, weights in dict.fromkeys((row["model"], row["weights"]) for row in results["rows"]):
        chosen = [row for row in results["rows"] if row["model"] == model and row["weights"] == weights]
        lines += ["", f"### {model}, {weights}", "", *_table(chosen, results["effort"])]
    return "\n".join(lines) + "\n"


def describe(results: dict[str, Any]) -> str:
    machine = results["machine"]
    return (
        f"{machine['cpu']}, {machine['threads']} threads, {machine['memory_bytes'] / 2**30:.0f} GiB"
        f" ({', '.join(machine['flags'])})."
    )


def _table(chosen: Sequence[dict[str, Any]], effort: dict[str, Any]) -> Iterable[str]:
    present = {row["label"] for row in chosen}
    labels = [entrant.label for entrant in ENTRANTS if entrant.label in present]
    by_place = {(row["cell"], row["label"]): row for row in chosen}
    yield "| | " + " | ".join(labels) + " |"
    yield "| --- |" + " ---: |" * len(labels)
    held = {row["label"]: row["work"]["weight_bytes"] / 1e6 for row in chosen if row["work"]}
    if held:
        sizes = [f"{held[label]:.0f}" if label in held else "" for label in labels]
        yield f"| weights, MB a token | {' | '.join(sizes)} |"
    for cell in dict.fromkeys(row["cell"] for row in chosen):
        cells = [_cell_text(by_place.get((cell, label)), effort) for label in labels]
        yield f"| {cell} | " + " | ".join(cells) + " |"


def _cell_text(row: dict[str, Any] | None, effort: dict[str, Any]) -> str:
    if row is None:
        return ""
    if row["median"] is None:
        return "failed" if row["error"] else "–"
    spread = 50 * (row["high"] - row["low"]) / row["median"]
    text = f"{value_text(row)} ±{spread:.0f}" if row["count"] > 1 else value_text(row)
    text += "!" if row["disturbance"] > effort["limit"] else ""
    notes = [f"{row['times_best_peer']:.2f}×"] if row["ours"] and row["times_best_peer"] else []
    notes += [f"{100 * row['of_limit']:.0f} %"] if row["of_limit"] else []
    notes += [f"n = {row['count']}"] if row["wanted"] < effort["repeats"] and row["kind"] != "memory" else []
    text = f"{text} ({', '.join(notes)})" if notes else text
    return f"**{text}**" if row["ours"] else text


def distances(results: dict[str, Any]) -> str:
    """How far from this machine's limits: bytes per second in decode, operations per second in prefill."""
    lines = [
        "Decode: weight bytes a second and their share of the measured bandwidth for a working set of that size."
        " Prefill: operations a second and their share of the measured peak, int8 for weights of at most 8 bits.",
        "",
        "| model | cell | entrant | reached | of the limit |",
        "| --- | --- | --- | ---: | ---: |",
    ]
    for row in results["rows"]:
        decodes = row["kind"] == "decode" and row["batch"] == 1
        share = row.get("of_read" if decodes else "of_peak")
        if row["median"] is None or not share or not (decodes or row["kind"] == "prefill"):
            continue
        if not row["ours"] and row["label"] != row["best_peer"]:
            continue
        work = row["work"]
        if decodes:
            reached = f"{work['weight_bytes'] * row['median'] / GB:.1f} GB/s"
        else:
            reached = f"{work['flops'] / row['median'] / 1e9:.0f} Gop/s"
        lines.append(f"| {row['model']} | {row['cell']} | {row['label']} | {reached} | {100 * share:.0f} % |")
    return "\n".join(lines) + "\n"


HEADLINES: Final = ("prefill 512", "decode 128 b1", "decode 128 b8", "decode 128 b16", "cold start")


def headline(results: dict[str, Any]) -> str:
    """The few lines that a README shows: our best entrant of each cell, times the best peer."""
    cells = [cell for cell in HEADLINES if any(row["cell"] == cell for row in results["rows"])]
    lines = [f"| | {' | '.join(cells)} |", "| --- |" + " ---: |" * len(cells)]
    for model, weights in dict.fromkeys((row["model"], row["weights"]) for row in results["rows"]):
        rows = [r for r in results["rows"] if (r["model"], r["weights"]) == (model, weights)]
        lines.append(f"| {model}, {weights} | {' | '.join(_headline_cell(rows, cell) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _headline_cell(rows: Sequence[dict[str, Any]], cell: str) -> str:
    ours = [r for r in rows if r["cell"] == cell and r["ours"] and r["median"] is not None]
    if not ours:
        return ""
    best = max(ours, key=lambda r: r["median"] if r["kind"] == "decode" else -r["median"])
    unit = "tok/s" if best["kind"] == "decode" else "s"
    times = f", {best['times_best_peer']:.2f}× {best['best_peer']}" if best["times_best_peer"] else ""
    return f"{value_text(best)} {unit} ({best['label'].removeprefix('kvwise ')}){times}"


def value_text(row: dict[str, Any]) -> str:
    """Three figures that count."""
    value = row["median"] / MIB if row["kind"] == "memory" else row["median"]
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
