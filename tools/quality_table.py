"""Writes planner/quality.json from results of `make bench-quality`: python tools/quality_table.py [RESULTS.json]"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BASE = "f32"


def table_of(results: dict[str, Any]) -> dict[str, Any]:
    """Perplexity over the base's, less 1: of weights with K and V of the base, and the other way round."""
    rows = {(row["weights"], row["kv"]): row["perplexity"] for row in results["rows"]}
    base = rows[BASE, BASE]
    return {
        "model": results["model"],
        "text": f"{results['text']['source']}; {results['text']['scored']} tokens",
        "weights": {weights: round(value / base - 1, 6) for (weights, kv), value in rows.items() if kv == BASE},
        "kv_dtype": {kv: round(value / base - 1, 6) for (weights, kv), value in rows.items() if weights == BASE},
    }


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "benchmarks" / "results" / "quality.json"
    table = table_of(json.loads(source.read_text("utf-8")))
    (ROOT / "src" / "kvwise" / "planner" / "quality.json").write_text(json.dumps(table, indent=1) + "\n", "utf-8")
