"""Draws the figure of the README from the JSON of a run: speed of everyone, in times the best peer's.

    python figure.py RESULTS.json OUT.svg

Runs where matplotlib is; imports nothing else of this package.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OURS, PEER, LIMIT = "#c2410c", "#64748b", "#0f172a"
OUR_MARKERS = {"kvwise i": "D", "kvwise": "o"}  # the first that a label begins with
OUR_NAMES = {"o": "kvwise, the file's type", "D": "kvwise, its own type"}
MARKERS = {"llama.cpp": "o", "OpenVINO": "s", "vLLM": "^", "transformers": "D"}


def draw(results: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "kvwise"  # the same data gives the same file
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    rows = [row for row in results["rows"] if row["median"] is not None and row["times_best_peer"] is not None]
    models = list(dict.fromkeys(row["model"] for row in rows))
    weights = [w for w in ("8-bit", "4-bit") if any(row["weights"] == w for row in rows)]
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    size = (3.4 * len(models) + 1.4, 0.24 * len(cells) * len(weights) + 1.5)
    figure, axes = pyplot.subplots(len(weights), len(models), figsize=size, sharex=True, sharey=True, squeeze=False)
    for line, kind in zip(axes, weights, strict=True):
        for axis, model in zip(line, models, strict=True):
            chosen = [row for row in rows if row["model"] == model and row["weights"] == kind]
            _panel(axis, chosen, cells)
            axis.set_title(f"{model}, {kind}", fontsize=9, loc="left")
    for line in axes:
        line[0].set_yticks(range(len(cells)), cells, fontsize=8)
    axes[0][0].set_ylim(len(cells) - 0.5, -0.5)
    for axis in axes[-1]:
        axis.set_xlabel("speed, in times the best peer's", fontsize=8)
    legend = [
        Line2D([], [], color=OURS, marker=m, markersize=5, linestyle="", label=OUR_NAMES[m])
        for m in dict.fromkeys(_marker(OUR_MARKERS, row) for row in rows if row["ours"])
    ]
    legend += [
        Line2D([], [], color=PEER, marker=marker, linestyle="", markerfacecolor="none", label=name)
        for name, marker in MARKERS.items()
        if any(row["label"].startswith(name) and row["weights"] in weights for row in rows)
    ]
    legend += [Line2D([], [], color=LIMIT, marker="|", linestyle="", markersize=9, label="this machine's limit")]
    columns = len(legend) if len(models) > 1 else 2
    figure.legend(handles=legend, loc="lower center", ncols=columns, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.22 * (1 + -(-len(legend) // columns)) / size[1], 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    figure.savefig(path, dpi=150, metadata=metadata)


def _panel(axis: Any, chosen: list[dict[str, Any]], cells: list[str]) -> None:
    axis.axvline(1, color="#cbd5e1", linewidth=1, zorder=0)
    axis.grid(axis="y", color="#f1f5f9", zorder=0)
    axis.set_xscale("log")
    axis.set_xticks([0.25, 0.5, 1, 2, 4], ["¼", "½", "1", "2", "4"], fontsize=8)
    axis.minorticks_off()
    axis.set_xlim(0.15, 6)
    axis.spines[["top", "right"]].set_visible(False)
    for row in chosen:
        y, x = cells.index(row["cell"]), row["times_best_peer"]
        if row["ours"]:
            axis.plot(x, y, _marker(OUR_MARKERS, row), color=OURS, markersize=5, zorder=3)
            if row["of_limit"]:
                axis.plot(x / row["of_limit"], y, "|", color=LIMIT, markersize=9, zorder=2)
        else:
            axis.plot(x, y, _marker(MARKERS, row), color=PEER, markerfacecolor="none", markersize=5, zorder=2)


def _marker(markers: dict[str, str], row: dict[str, Any]) -> str:
    return next((marker for name, marker in markers.items() if row["label"].startswith(name)), "o")


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text("utf-8")), Path(sys.argv[2]))
