"""Measures kvwise and, where they are installed, its peers.

    python -m peers                            kvwise alone
    python -m peers --peers all --install      everybody, each installed into an environment of its own first
    python -m peers --only "decode 128" --models smollm2-135m --weights 4-bit --repeats 1

Run with benchmarks/ on PYTHONPATH. Results, models and environments are kept in the work folder.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import limits as machine_limits

from . import machine, models, report
from .cells import CELLS, WEIGHTS, Cell, Entrant, entrants
from .environments import Environments
from .facts import Facts, with_limits
from .harness import Effort, Round, Seat, Series
from .sources import MODELS, shape_of

PEERS: Final = ("llama.cpp", "openvino", "vllm", "transformers")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from kvwise.checkpoint.bundled import cache_dir

    parser = argparse.ArgumentParser(
        prog="peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=cache_dir() / "bench", help="models, environments, results")
    parser.add_argument("--peers", default="", help=f"all, or some of {', '.join(PEERS)}")
    parser.add_argument("--install", action="store_true", help="install the peers that are missing (several GB)")
    parser.add_argument(
        "--env", action="append", default=[], metavar="PEER=FOLDER", help="an environment that is there already"
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--weights", default=",".join(WEIGHTS))
    parser.add_argument(
        "--only", default="", help='cells by name or its first words, separated by commas: "prefill,decode 128 b8"'
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=Effort.repeats)
    parser.add_argument("--retries", type=int, default=Effort.retries)
    parser.add_argument("--patience", type=float, default=Effort.patience_s, help="seconds to wait for quiet")
    parser.add_argument("--figure", type=Path, help="draw the figure here")
    parser.add_argument("--json", type=Path, help="results; default: in the work folder, by date")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    given = {name: Path(folder) for name, _, folder in (item.partition("=") for item in args.env)}
    environments = Environments(args.work, given, args.install)
    wanted = PEERS if args.peers == "all" else tuple(p for p in args.peers.split(",") if p)
    present = ["kvwise", *(p for p in wanted if _is_present(environments, p))]
    effort = Effort(args.repeats, args.retries, patience_s=args.patience)
    begins = [item.strip() + " " for item in args.only.split(",")]
    cells = [c for c in CELLS if not args.only or any(f"{c.name} ".startswith(begin) for begin in begins)]
    results: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine.describe(args.threads),
        "effort": {"repeats": effort.repeats, "retries": effort.retries, "limit": effort.limit},
        "limits": machine_limits.measure(args.threads),
        "versions": {},
        "rows": [],
    }
    path = args.json or args.work / "results" / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    for model in args.models.split(","):
        for weights in args.weights.split(","):
            field = _Field(args.work, environments, model, entrants(model, weights, present), args.threads, effort)
            if field.seats:
                field.measure(cells, results)
                results["limits"] = machine_limits.best_of(results["limits"], machine_limits.measure(args.threads))
                results["rows"] = with_limits(results["rows"], results["limits"])
                path.write_text(json.dumps(results, indent=1), "utf-8")  # what is measured is kept
    print(machine_limits.format_limits(results["limits"]))
    print(report.markdown(results))
    print(f"results: {path}")
    if args.figure:
        _draw(environments, path, args.figure)
    return 0


def _is_present(environments: Environments, peer: str) -> bool:
    if environments.python(peer) is not None:
        return True
    print(f"{peer} is not installed, --install does it", file=sys.stderr)
    return False


class _Field:
    """Everybody who has one model in one kind of weights."""

    def __init__(
        self,
        work: Path,
        environments: Environments,
        model: str,
        field: list[Entrant],
        threads: int,
        effort: Effort,
    ) -> None:
        self.model, self.effort, self._logs = model, effort, work / "logs"
        self.entrants = field
        self.files: dict[str, Path] = {}
        self.seats: dict[str, Seat] = {}
        for entrant in field:
            file = self.files[entrant.label] = _file(work, environments, model, entrant.file)
            command = (str(environments.python(entrant.peer)), "-m", entrant.module)
            self.seats[entrant.label] = Seat(entrant.label, command, file, entrant.options, threads, entrant.ours)

    def measure(self, cells: Sequence[Cell], results: dict[str, Any]) -> None:
        """Appends rows to `results`. Requests alone and in batches are served by processes of their own."""
        print(f"{self.model}, {self.entrants[0].weights}", file=sys.stderr, flush=True)
        ours = next((e for e in self.entrants if e.ours), None)
        facts = Facts(self.files[ours.label]) if ours else None
        vocab = shape_of(self.model).vocab
        for alone in (True, False):
            group = [c for c in cells if c.kind in ("prefill", "decode") and (c.batch == 1) is alone]
            if group:
                with Round(list(self.seats.values()), vocab, self.effort, self._logs) as round_:
                    for cell, series in round_.measure(group).items():
                        self._report(cell, series, facts, results)
                    results["versions"].update(round_.versions)
        for cell in (c for c in cells if c.kind in ("start", "memory")):
            seats = [self.seats[e.label] for e in self.entrants if cell.competes(e)]
            with Round(seats, vocab, self.effort, self._logs) as round_:
                self._report(cell, round_.measure_start(cell, cell.kind == "memory"), facts, results)
        if facts:
            facts.close()

    def _report(self, cell: Cell, series: list[Series], facts: Facts | None, results: dict[str, Any]) -> None:
        work = {e.label: facts.work(cell, self.files[e.label]) if facts else None for e in self.entrants}
        results["rows"] += report.rows(self.model, cell, self.entrants, series, work, self.effort.repeats)


def _file(work: Path, environments: Environments, model: str, file: str) -> Path:
    python = environments.python("openvino-export") if file.startswith("ov-") else None
    return models.ensure(work, model, file, python.with_name("optimum-cli") if python else None)


def _draw(environments: Environments, results: Path, figure: Path) -> None:
    python = environments.python("figure")
    if python is None:
        print("the figure needs matplotlib, --install gets it", file=sys.stderr)
        return
    subprocess.run([str(python), str(Path(__file__).with_name("figure.py")), str(results), str(figure)], check=True)


if __name__ == "__main__":
    sys.exit(main())
