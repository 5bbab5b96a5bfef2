"""Prints the knots of planner/simulation/sessions.py for a trace of Mooncake's: python tools/fit_sessions.py TRACE"""

from __future__ import annotations

import sys
from pathlib import Path

from kvwise.planner.simulation.lengths import Quantiles
from kvwise.planner.simulation.load import CONTENT_TOKENS
from kvwise.planner.simulation.traces import read_trace


def main() -> None:
    last_with: dict[int, int] = {}  # a block, and the last request that had it
    distance, first, new, first_output, later_output = [], [], [], [], []
    sizes = read_trace(Path(sys.argv[1])).sizes
    for number, size in enumerate(sizes):
        known = next((i for i, block in enumerate(size.content) if block not in last_with), len(size.content))
        if known:
            distance.append(number - last_with[size.content[known - 1]])
            new.append(max(1, size.prompt_tokens - known * CONTENT_TOKENS))
            later_output.append(size.output_tokens)
        else:
            first.append(size.prompt_tokens)
            first_output.append(size.output_tokens)
        last_with.update(dict.fromkeys(size.content, number))
    print(f"going_on={len(distance) / len(sizes):.3f}")
    for name, values in (
        ("distance", distance), ("first", first), ("new", new), ("first_output", first_output),
        ("later_output", later_output),
    ):  # fmt: skip
        print(f"{name}={Quantiles.of(values).knots}")
    print(f"mean prompt {sum(size.prompt_tokens for size in sizes) / len(sizes):.0f}")


if __name__ == "__main__":
    main()
