"""The bar of a load: on a terminal, when it takes long; bytes and their rate; nothing anywhere else."""

from __future__ import annotations

import io
from collections.abc import Iterable

import pytest
from rich.console import Console

from kvwise.cli import output
from kvwise.cli.output import loading_bar

MIB = 2**20


def drawn(*, terminal: bool, calls: Iterable[tuple[int, int]] = ((0, 64 * MIB), (32 * MIB, 64 * MIB))) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100)
    with loading_bar(console, "loading tiny") as progress:
        assert (progress is not None) == terminal
        for done, total in calls:
            if progress is not None:
                progress(done, total)
    return stream.getvalue()


def test_a_slow_load_shows_bytes_and_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_BAR_AFTER_S", 0.0)
    text = drawn(terminal=True)
    assert "loading tiny" in text
    assert "/64.0 MiB" in text
    assert "B/s" in text or "?" in text  # a rate needs two looks


def test_a_fast_load_shows_nothing() -> None:
    assert drawn(terminal=True) == ""


def test_nothing_is_drawn_for_a_load_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_BAR_AFTER_S", 0.0)
    assert drawn(terminal=True, calls=[(MIB, MIB)]) == ""


def test_nothing_is_drawn_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_BAR_AFTER_S", 0.0)
    assert drawn(terminal=False) == ""


def test_a_name_is_text_and_can_not_move_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_BAR_AFTER_S", 0.0)
    stream = io.StringIO()
    with loading_bar(Console(file=stream, force_terminal=True, width=100), "[bold]x[/blue]\x1b[2J") as progress:
        assert progress is not None
        progress(0, MIB)
    assert "[bold]x[/blue]" in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()
