"""Where text goes: answers and JSON on stdout, everything for people on stderr, plain when that is no terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from kvwise.backends.protocol import Progress


def people() -> Console:
    """A console on stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def answer(text: str) -> None:
    """Stream a piece of the answer to stdout, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_json(value: object) -> None:
    """One object on stdout, with characters as they are."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=_plain) + "\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset | set):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


@contextmanager
def loading_bar(console: Console, what: str) -> Iterator[Progress | None]:
    """A progress callback drawn as a bar on a terminal; None elsewhere."""
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    bar = Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(True), console=console, transient=True)
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
