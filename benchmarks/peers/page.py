"""What is published of a run: docs/peers.md, docs/peers.svg, and the block of the README between two markers.

    python -m peers.page [RESULTS.json]       with benchmarks/ on PYTHONPATH

Everything is made from the JSON, so nothing that is read was typed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import limits as machine_limits

from . import report
from .environments import Environments

REPOSITORY: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = REPOSITORY / "benchmarks" / "results" / "peers.json"
FIGURE: Final = "docs/peers.svg"
PAGE: Final = "docs/peers.md"
BEGIN: Final = "<!-- peers: made by benchmarks/peers/page.py -->"
END: Final = "<!-- /peers -->"


def publish(results_path: Path, environments: Environments) -> None:
    """Writes the page, the figure where matplotlib is, and the README's block."""
    results = json.loads(results_path.read_text("utf-8"))
    page, readme = REPOSITORY / PAGE, REPOSITORY / "README.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(page_text(results), "utf-8")
    readme.write_text(with_block(readme.read_text("utf-8"), block(results)), "utf-8")
    python = environments.python("figure")
    if python is None:
        print("the figure needs matplotlib, --install gets it", file=sys.stderr)
        return
    script = Path(__file__).with_name("figure.py")
    subprocess.run([str(python), str(script), str(results_path), str(REPOSITORY / FIGURE)], check=True)


def page_text(results: dict[str, Any]) -> str:
    versions = [f"- {label}: {_listed(found)}" for label, found in sorted(results["versions"].items())]
    parts = [
        "# kvwise beside its peers",
        "Made by `make bench-peers` from `benchmarks/results/peers.json`; how: `benchmarks/peers/`.",
        "![speed in times the best peer's](peers.svg)",
        report.markdown(results).rstrip(),
        "## Distance to the limit",
        report.distances(results).rstrip(),
        "The limits, by our own loops (`benchmarks/limits.py`):",
        f"```text\n{machine_limits.format_limits(results['limits'])}\n```",
        "## Versions",
        "\n".join(versions),
    ]
    return "\n\n".join(parts) + "\n"


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {value.strip(' |')}" for name, value in versions.items())


def block(results: dict[str, Any]) -> str:
    """The README's words, figure and numbers."""
    repeats, threads = results["effort"]["repeats"], results["machine"]["threads"]
    return (
        f"![speed in times the best peer's]({FIGURE})\n\n"
        f"Same weights, same tokens, {threads} threads, alternating in one run; medians of {repeats}."
        f" {report.describe(results)} In brackets our type of weights; × is speed in times the best peer's, who is"
        " named."
        f" [Every cell, spread and distance to the limit]({PAGE}).\n\n"
        f"{report.headline(results)}"
    )


def with_block(text: str, made: str) -> str:
    """`text` with what stands between the markers replaced. Raises ValueError without them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{made}{END}{after}"


if __name__ == "__main__":
    from kvwise.checkpoint.bundled import cache_dir

    publish(Path(sys.argv[1]) if sys.argv[1:] else RESULTS, Environments(cache_dir() / "bench", {}, install=False))
