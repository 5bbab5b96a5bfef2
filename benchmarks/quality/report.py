"""docs/quality.md from benchmarks/results/quality.json. Pure but for main.

python -m quality.report RESULTS.json PAGE.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

COLUMNS = (
    "weights", "bits", "KV", "perplexity", "Δ", "KL", "KL p99", "top-1", "llama.cpp", "ours − theirs", "llama.cpp's KL",
)  # fmt: skip


def markdown(results: dict[str, Any]) -> str:
    base = base_row(results)
    text = results["text"]
    lines = [
        "# Quality",
        "",
        "What each kind of weights and of K and V costs, and how close kvwise is to llama.cpp on the same file. Made by"
        " `make bench-quality`; nothing here is typed by hand.",
        "",
        f"- Model: {results['model']}, its weights dequantized: they lie on Q4_1's grid, which flatters what can hold"
        " that grid (Q4_1, Q5_1, Q8_0).",
        f"- Text: {text['source']}; the first {text['tokens']} tokens, {text['scored']} of them scored, in windows of"
        f" {results['window']} every {results['stride']}.",
        f"- Machine: {results['cpu']}, instruction set {results['isa']}; {results['versions']}.",
        f"- Δ, KL (nats, mean and 99th percentile) and top-1 (equal first choices) are against float32 weights and"
        f" float32 K and V: perplexity {base['perplexity']:.4f}.",
        '- bits: of all weights, per weight, as held in memory. "down": that type in the down projections only, the'
        " rest in float32, because SmolLM2's other rows are no whole blocks of a K type.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "| --- | ---: | --- |" + " ---: |" * (len(COLUMNS) - 3),
        *(_line(row, base) for row in results["rows"]),
    ]
    return "\n".join(lines) + "\n"


def base_row(results: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(r for r in results["rows"] if r["weights"] == "f32" and r["kv"] == "f32")
    return found


def plain(results: dict[str, Any]) -> str:
    """The table for a terminal."""
    base = base_row(results)
    cells = [list(COLUMNS), *([part.strip() for part in _line(r, base).strip("|").split("|")] for r in results["rows"])]
    widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
    return "\n".join("  ".join(_aligned(row, widths)) for row in cells)


def _aligned(row: list[str], widths: list[int]) -> Iterable[str]:
    for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.ljust(width) if i in (0, 2) else cell.rjust(width)


def _line(row: dict[str, Any], base: dict[str, Any]) -> str:
    theirs = row["llamacpp"]
    cells = [
        row["weights"],
        f"{row['bits']:.2f}",
        row["kv"],
        f"{row['perplexity']:.4f}",
        percent(row["perplexity"], base["perplexity"]),
        f"{row['kl']:.2g}",
        f"{row['kl_p99']:.2g}",
        f"{100 * row['top1']:.2f} %",
        f"{theirs['perplexity']:.4f}" if theirs else "",
        percent(row["perplexity"], theirs["perplexity"]) if theirs else "",
        f"{theirs['kl']:.2g}" if theirs else "",
    ]
    return "| " + " | ".join(cells) + " |"


def percent(value: float, reference: float) -> str:
    return f"{100 * (value / reference - 1):+.3f} %"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(markdown(json.loads(Path(sys.argv[1]).read_text("utf-8"))), "utf-8")
