"""The JSON that a benchmark is kept in: what was measured where, cell by cell. Pure but for reading and writing it.

A run may be cut into many: rows of a cell replace those that were there, everything else stays, and rows of another
machine are never mixed in.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import limits as machine_limits

from .cells import CELLS, ENTRANTS, WEIGHTS, Cell, Entrant
from .facts import with_limits
from .sources import MODELS


class OtherMachine(RuntimeError):
    """The file holds results of another machine."""


class Results:
    """What a file holds. `effort`: what counts as disturbed."""

    def __init__(self, path: Path, machine: dict[str, Any], effort: dict[str, Any]) -> None:
        """Raises OtherMachine."""
        self.path = path
        fresh: dict[str, Any] = {"machine": machine, "effort": effort, "limits": None, "versions": {}, "rows": []}
        self.content: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else fresh
        if self.content["machine"] != machine:
            raise OtherMachine(f"{path} holds results of another machine ({self.content['machine'].get('cpu')})")
        self.content["effort"] = effort

    def add_limits(self, limits: dict[str, Any]) -> None:
        """The better of each figure counts: others can only take from it."""
        known = self.content["limits"]
        self.content["limits"] = limits if known is None else machine_limits.best_of(known, limits)
        self.content["rows"] = with_limits(self.content["rows"], self.content["limits"])

    def add(self, rows: Sequence[dict[str, Any]], versions: dict[str, dict[str, str]]) -> None:
        """Rows of one cell, in place of those that were there; then the file is written."""
        places = {_place(row) for row in rows}
        kept = [row for row in self.content["rows"] if _place(row) not in places]
        added = with_limits(list(rows), self.content["limits"])
        self.content["rows"] = sorted([*kept, *added], key=_order)
        self.content["versions"] |= versions
        self.save()

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text(_one_row_a_line(self.content), "utf-8")
        partial.replace(self.path)

    def is_done(self, model: str, cell: Cell, entrants: Collection[Entrant]) -> bool:
        """Whether everybody who competes has all samples in this cell, or has failed in it."""
        found = {row["label"]: row for row in self.content["rows"] if (row["model"], row["cell"]) == (model, cell.name)}
        competing = [e.label for e in entrants if cell.competes(e)]
        return all(label in found and _is_whole(found[label]) for label in competing)


def _one_row_a_line(content: dict[str, Any]) -> str:
    """JSON that a diff can be read of."""
    rows = ",\n".join(json.dumps(row) for row in content["rows"])
    head = json.dumps({name: value for name, value in content.items() if name != "rows"}, indent=1)
    return f'{head.removesuffix("}").rstrip()},\n "rows": [\n{rows}\n ]\n}}\n'


def _is_whole(row: dict[str, Any]) -> bool:
    return bool(row["error"]) or row["count"] >= row["wanted"]


def _place(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["model"], row["weights"], row["cell"]


def _order(row: dict[str, Any]) -> tuple[int, int, int, int]:
    """Models, weights, cells and entrants as their tables have them; what no table has any more comes last."""
    cells = [cell.name for cell in CELLS]
    labels = [entrant.label for entrant in ENTRANTS]
    place = _index(MODELS, row["model"]), _index(WEIGHTS, row["weights"])
    return *place, _index(cells, row["cell"]), _index(labels, row["label"])


def _index(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else len(names)
