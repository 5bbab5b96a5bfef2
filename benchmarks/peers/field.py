"""Everybody who has one model in one kind of weights: their files, their processes, cell by cell."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from kvwise.errors import KvwiseError

from . import models, report
from .cells import Cell, Entrant
from .environments import Environments
from .facts import Facts, held_weight_bytes, stored_weight_bytes
from .harness import Effort, Round, Series
from .process import Seat
from .sources import shape_of


class Field:
    """Entrants that alternate. Making it makes the files that are missing."""

    def __init__(
        self, work: Path, environments: Environments, model: str, entrants: Sequence[Entrant], threads: int
    ) -> None:
        self.model, self.entrants, self._logs = model, entrants, work / "logs"
        self.versions: dict[str, dict[str, str]] = {}
        self._files = {e.label: ensure_file(work, environments, model, e.file) for e in entrants}
        self._seats = [
            Seat(
                e.label,
                (str(environments.python(e.peer)), "-m", e.module),
                self._files[e.label],
                e.options,
                threads,
                e.ours,
            )
            for e in entrants
        ]

    def measure(self, cells: Sequence[Cell], effort: Effort) -> Generator[list[dict[str, Any]], None, None]:
        """The rows of one cell after the other; `versions` grows on the way."""
        print(f"{self.model}, {self.entrants[0].weights}", file=sys.stderr, flush=True)
        vocab = shape_of(self.model).vocab
        weight_bytes = {e.label: self._weight_bytes(e) for e in self.entrants}
        facts = Facts(next(path for path in self._files.values() if path.suffix == ".gguf"))
        try:
            for cell, series in self._series(cells, vocab, effort):
                work = {label: facts.work(cell, nbytes) for label, nbytes in weight_bytes.items() if nbytes}
                rows = report.rows(self.model, cell, self.entrants, series, work)
                yield [{**row, "date": time.strftime("%Y-%m-%d %H:%M")} for row in rows]
        finally:
            facts.close()

    def _series(self, cells: Sequence[Cell], vocab: int, effort: Effort) -> Iterator[tuple[Cell, list[Series]]]:
        """Requests alone and in batches are served by processes of their own; so are starts and peaks."""
        steps = [c for c in cells if c.kind in ("prefill", "decode")]
        for alone, long in ((True, False), (False, False), (False, True)):
            group = [c for c in steps if (c.batch == 1) is alone and (alone or c.is_long is long)]
            if group:
                with Round(self._seats, vocab, effort, self._logs) as round_:
                    for measured in round_.measure(group):
                        self.versions.update(round_.versions)
                        yield measured
        for cell in (c for c in cells if c.kind in ("start", "memory")):
            competing = {e.label for e in self.entrants if cell.competes(e)}
            seats = [seat for seat in self._seats if seat.label in competing]
            with Round(seats, vocab, effort, self._logs) as round_:
                yield cell, round_.measure_start(cell, cell.kind == "memory")

    def _weight_bytes(self, entrant: Entrant) -> int | None:
        """None for one that can't load: its rows will say why."""
        file = self._files[entrant.label]
        if not entrant.ours:
            return stored_weight_bytes(file)
        try:
            return held_weight_bytes(file, entrant.options.get("open", {}))
        except KvwiseError:
            return None


def ensure_file(work: Path, environments: Environments, model: str, file: str) -> Path:
    """A model in a format, made when missing."""
    python = environments.python("openvino-export") if file.startswith("ov-") else None
    return models.ensure(work, model, file, python.with_name("optimum-cli") if python else None)
