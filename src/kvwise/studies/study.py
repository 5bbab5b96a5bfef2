"""What a study is: a question, a measurement, and two pure readings of its results: the finding and the figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvwise.ledger.rows import LedgerRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = dict[str, Any]  # plain JSON: what was measured, and everything it was measured with
Say = Callable[[str], None]


def say_nothing(_: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Ask:
    """How to measure. `say` is told what is being done; `trace` is only for studies that take one."""

    threads: int
    trace: Path | None = None
    say: Say = field(default=say_nothing)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """`finding`: one sentence with its figures. `rows`: predicted beside measured. `points`: further sentences."""

    finding: str
    rows: tuple[LedgerRow, ...]
    points: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Study:
    """`measure` takes under two minutes and returns what JSON can hold; `conclude` and `draw` read that, and nothing
    else, so that text and figure can be made anew from a file of results. `about`: a text without figures of a run.
    """

    name: str
    question: str
    measure: Callable[[Ask], Results]
    conclude: Callable[[Results], Conclusion]
    draw: Callable[[Results], Figure]
    about: Path
    takes_trace: bool = False
