"""Runs the command line in this process, as a user would type it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvwise.cli.main import main

TINY = Path(__file__).parents[1] / "goldens" / "hf" / "llama"


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Kvwise = Callable[..., Finished]


class _Stdin(io.TextIOWrapper):
    """Standard input that holds `text`, or a terminal that nobody types on."""

    def __init__(self, text: bytes | None) -> None:
        super().__init__(io.BytesIO(text or b""))
        self._terminal = text is None

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def kvwise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kvwise:
    """`kvwise("run", ..., stdin=...)` -> exit code and both streams."""

    def run(*arguments: str, stdin: str | bytes | None = None) -> Finished:
        text = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "argv", ["kvwise", *arguments])
        monkeypatch.setattr(sys, "stdin", _Stdin(text))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return Finished(int(exit_.value.code or 0), out, err)

    return run


@pytest.fixture
def tiny() -> str:
    """A random llama of 259 tokens, in a folder."""
    return str(TINY)
