"""Prints the knots of planner/simulation/lengths.py for a trace of Azure's: python tools/fit_lengths.py TRACE.csv"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from kvwise.planner.simulation.lengths import Quantiles


def main() -> None:
    with Path(sys.argv[1]).open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    for column in ("ContextTokens", "GeneratedTokens"):
        values = [int(row[column]) for row in rows]
        fitted = Quantiles.of(values)
        print(f"{column}: {fitted.knots}")
        print(f"  mean {sum(values) / len(values):.1f}, of the fit {fitted.mean:.1f}")


if __name__ == "__main__":
    main()
