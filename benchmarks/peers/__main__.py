"""Measures kvwise and, where they are installed, its peers.

    python -m peers                            kvwise alone
    python -m peers --peers all --install      everybody, each installed into an environment of its own first
    python -m peers --peers all --prepare      makes the models that are missing; measures nothing
    python -m peers --peers all --resume --minutes 9     what is missing in the results, as far as 9 minutes go
    python -m peers --only "decode 128" --models smollm2-135m --weights 4-bit --repeats 1

Run with benchmarks/ on PYTHONPATH. Results are written after every cell and may be gathered in many runs; models and
environments are kept in the work folder.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Final

import limits as machine_limits

from . import machine, page, report
from .cells import CELLS, WEIGHTS, Cell, Entrant, entrants
from .environments import Environments
from .field import Field, ensure_file
from .harness import Effort
from .results import OtherMachine, Results
from .sources import MODELS

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
    parser.add_argument("--entrants", default="", help='only these, by label: "kvwise Q8_0,llama.cpp Q8_0"')
    parser.add_argument(
        "--only", default="", help='cells by name or its first words, separated by commas: "prefill,decode 128 b8"'
    )
    parser.add_argument("--prepare", action="store_true", help="make the models that are missing, measure nothing")
    parser.add_argument("--resume", action="store_true", help="leave out cells that the results hold already")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after so long")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=Effort.repeats)
    parser.add_argument("--retries", type=int, default=Effort.retries)
    parser.add_argument("--patience", type=float, default=Effort.patience_s, help="seconds to wait for quiet")
    parser.add_argument("--json", type=Path, help="results; default: peers.json in the work folder")
    parser.add_argument("--publish", action="store_true", help="make docs/peers.* and the README's block from them")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    given = {name: Path(folder) for name, _, folder in (item.partition("=") for item in args.env)}
    environments = Environments(args.work, given, args.install)
    fields = list(_chosen(args, environments))
    if args.prepare:
        _prepare(args.work, environments, fields)
        return 0
    effort = Effort(args.repeats, args.retries, patience_s=args.patience)
    path = args.json or args.work / "results" / "peers.json"
    try:
        results = Results(path, machine.describe(args.threads), asdict(effort))
    except OtherMachine as error:
        print(f"{error}: name another with --json", file=sys.stderr)
        return 2
    _measure(args, environments, fields, effort, results)
    if results.content["limits"] is None:
        return 0
    print(machine_limits.format_limits(results.content["limits"]))
    print(report.markdown(results.content))
    print(f"results: {path}")
    if args.publish:
        page.publish(path, environments)
    return 0


def _measure(
    args: argparse.Namespace,
    environments: Environments,
    fields: Sequence[tuple[str, list[Entrant]]],
    effort: Effort,
    results: Results,
) -> None:
    """Cell by cell until there are none left, or no time."""
    ends_at = time.monotonic() + 60 * args.minutes
    asked = chosen_cells(args.only)
    for model, field in fields:
        cells = [c for c in asked if not (args.resume and results.is_done(model, c, field))]
        if not cells or time.monotonic() > ends_at:
            continue
        places = Field(args.work, environments, model, field, args.threads)
        if results.content["limits"] is None or not args.resume:
            results.add_limits(machine_limits.measure(args.threads))
        with closing(places.measure(cells, effort)) as measured:
            for rows in measured:
                results.add(rows, places.versions)
                if time.monotonic() > ends_at:
                    break


def _chosen(args: argparse.Namespace, environments: Environments) -> Iterator[tuple[str, list[Entrant]]]:
    """Models with those who compete in one kind of weights."""
    wanted = PEERS if args.peers == "all" else tuple(p for p in args.peers.split(",") if p)
    present = ["kvwise", *(p for p in wanted if _is_present(environments, p))]
    labels = {label.strip() for label in args.entrants.split(",") if label.strip()}
    for model in args.models.split(","):
        for weights in args.weights.split(","):
            field = [e for e in entrants(model, weights, present) if not labels or e.label in labels]
            if field:
                yield model, field


def _is_present(environments: Environments, peer: str) -> bool:
    if environments.python(peer) is not None:
        return True
    print(f"{peer} is not installed, --install does it", file=sys.stderr)
    return False


def chosen_cells(only: str) -> list[Cell]:
    """Those whose names begin with one of the comma-separated words; all when there are none."""
    begins = [f"{item.strip()} " for item in only.split(",") if item.strip()]
    return [c for c in CELLS if not begins or any(f"{c.name} ".startswith(begin) for begin in begins)]


def _prepare(work: Path, environments: Environments, fields: Sequence[tuple[str, list[Entrant]]]) -> None:
    for model, field in fields:
        for file in dict.fromkeys(entrant.file for entrant in field):
            print(f"{model} {file}", file=sys.stderr, flush=True)
            print(ensure_file(work, environments, model, file))


if __name__ == "__main__":
    sys.exit(main())
