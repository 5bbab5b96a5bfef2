"""Where text goes: answers and JSON on stdout, everything for people on stderr, plain when that is no terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console

    from kvwise.backends.protocol import Progress


# Control characters, which move a terminal's cursor or worse; a model's file and a model's answer are not trusted.
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_ANSWER_CONTROLS: Final = {code: shown for code, shown in _CONTROLS.items() if chr(code) not in "\n\t"}
_BAR_AFTER_S: Final = 0.5
_UNBOUNDED_COLUMNS: Final = 2**14  # wider than any path; tables take no more than they need


def printable(text: str) -> str:
    """`text` on one line, with control characters and what UTF-8 can't hold written as escapes."""
    return text.translate(_CONTROLS).encode("utf-8", "backslashreplace").decode("utf-8")


def people(*, stderr: bool = True) -> Console:
    """A console for tables and notes, never cut off where there is no terminal.

    Text is taken as it is: names may hold what looks like markup.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _UNBOUNDED_COLUMNS
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=True, markup=False, emoji=False)


def answer(text: str) -> None:
    """Stream a piece of the answer to stdout, at once; as it is, unless a terminal would obey it."""
    sys.stdout.write(text.translate(_ANSWER_CONTROLS) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def print_json(value: object) -> None:
    """One object on stdout, with characters as they are where stdout can hold them."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, allow_nan=False, default=_plain)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset | set):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


@contextmanager
def counting_bar(console: Console, what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A callback that takes (done, in all), drawn as a bar on a terminal; None elsewhere."""
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    name = TextColumn("{task.description}", markup=False)
    bar = Progress(name, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console, transient=True)
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def loading_bar(console: Console, what: str) -> Iterator[Progress | None]:
    """A progress callback that draws a bar of bytes and their rate on a terminal, if it takes long; None elsewhere."""
    if not console.is_terminal:
        yield None
        return
    bar = _LateBar(console, what)
    try:
        yield bar
    finally:
        bar.close()


class _LateBar:
    """A bar that is drawn once loading has taken a while: most of it would be gone before it was read."""

    def __init__(self, console: Console, what: str) -> None:
        self._console, self._what = console, what
        self._due_s = time.monotonic() + _BAR_AFTER_S
        self._update: Progress | None = None
        self._drawn = ExitStack()

    def __call__(self, done: int, total: int) -> None:
        if self._update is None and done < total and time.monotonic() >= self._due_s:
            self._update = self._draw()
        if self._update is not None:
            self._update(done, total)

    def close(self) -> None:
        self._drawn.close()

    def _draw(self) -> Progress:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        name = TextColumn("{task.description}", markup=False)
        columns = (name, BarColumn(), DownloadColumn(True), TransferSpeedColumn())
        bar = self._drawn.enter_context(Progress(*columns, console=self._console, transient=True))
        task = bar.add_task(printable(self._what), total=None)
        return lambda done, total: bar.update(task, completed=done, total=total)
