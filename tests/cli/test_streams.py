"""What may happen to standard input, output and error: closed, full, gone, of another encoding, or a terminal."""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import kvwise.__main__
from cli.conftest import TINY, Kvwise
from kvwise.checkpoint.resolve import LocalModel
from kvwise.cli.output import answer, print_json, printable

RUN = ("run", str(TINY), "hello", "--backend", "reference", "--raw", "-n", "3")
COMMANDS = (RUN, ("plan", str(TINY)), ("plan", str(TINY), "--json"), ("trace", *RUN[1:]), ("models",))


def shell(arguments: Sequence[str], redirections: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A real process under a shell that redirects its streams."""
    command = shlex.join([sys.executable, "-m", "kvwise", *arguments])
    return subprocess.run(
        ["/bin/sh", "-c", f"{command} {redirections}"],
        capture_output=True,
        check=False,
        text=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda a: a[0])
@pytest.mark.parametrize("redirections", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_failure(arguments: tuple[str, ...], redirections: str) -> None:
    result = shell(arguments, redirections)
    assert result.returncode == 0
    assert "Traceback" not in result.stderr


def test_without_a_prompt_a_closed_input_is_an_empty_one() -> None:
    result = shell(("run", str(TINY), "--raw"), "<&-")
    assert result.returncode == 2
    assert "the prompt is empty" in result.stderr


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda a: a[0])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_that_cannot_be_written_is_one_line_and_exit_code_1(arguments: tuple[str, ...]) -> None:
    result = shell(arguments, ">/dev/full")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == f"kvwise: {os.strerror(errno.ENOSPC)}"
    assert "Traceback" not in result.stderr
    assert shell(arguments, "2>/dev/full").returncode in (0, 1)


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda a: a[0])
def test_a_reader_that_leaves_early_is_not_an_error_to_talk_about(arguments: tuple[str, ...]) -> None:
    result = shell(arguments, "| true")
    assert "Traceback" not in result.stderr
    assert "Exception" not in result.stderr


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda a: a[0])
def test_an_output_that_lacks_characters_gets_others_and_json_stays_json(arguments: tuple[str, ...]) -> None:
    result = shell(arguments, "", PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert "Traceback" not in result.stderr
    if "--json" in arguments:
        json.loads(result.stdout)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1"])
@pytest.mark.parametrize("text", ["plain", "é", "東京 🎉", "a lone \udcff from a path"])
def test_json_says_the_same_in_every_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str, text: str) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    print_json({"text": text})
    assert json.loads(raw.getvalue().decode(encoding)) == {"text": text}


def test_what_is_printed_of_untrusted_text_is_one_line_that_moves_no_cursor() -> None:
    hostile = "a\x1b[2J\nb\r\x07\x9b\x7f\udcff é東"
    assert printable(hostile) == "a\\x1b[2J\\x0ab\\x0d\\x07\\x9b\\x7f\\udcff é東"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_answer_reaches_a_pipe_as_it_is_and_a_terminal_without_what_it_would_obey(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for stream, expected in ((io.StringIO(), "a\x1b[31m\n\tb"), (_Terminal(), "a\\x1b[31m\n\tb")):
        monkeypatch.setattr(sys, "stdout", stream)
        answer("a\x1b[31m\n\tb")
        assert stream.getvalue() == expected


@pytest.mark.parametrize("name", ["[bold]x[/blue]", "[/x]", "line\nbreak", "esc\x1b[31m", ":smile:", "--dash", "é 東"])
def test_a_folder_of_any_name_can_be_planned_run_and_listed(
    kvwise: Kvwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    parent = tmp_path / name
    shutil.copytree(TINY, parent / name)
    model = str(parent / name)
    planned = kvwise("plan", model)
    assert planned.code == 0
    assert printable(name.rpartition("/")[2]) in planned.out
    assert kvwise("run", model, *RUN[2:]).code == 0
    monkeypatch.setattr(
        "kvwise.checkpoint.resolve.list_local_models", lambda: [LocalModel(model, Path(model), "a test", 1)]
    )
    listed = kvwise("models")
    assert listed.code == 0
    assert f" {printable(model)} " in listed.out


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 1, "Permission denied: /x"),
        (MemoryError(), 1, "out of memory"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_the_system_does_to_us_is_one_line(
    kvwise: Kvwise, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, message: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr("kvwise.engine.model.OpenedModel.load", fail)
    result = kvwise(*RUN)
    assert result.code == code
    assert message in result.err
    assert "Traceback" not in result.err


def test_an_interrupt_while_the_commands_load_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "kvwise.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "kvwise.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting, *sys.meta_path])
    with pytest.raises(SystemExit) as exit_:
        kvwise.__main__.main()
    assert exit_.value.code == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_that_is_told_to_end_cleans_up_first(
    kvwise: Kvwise, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    cleaned = []

    def wait_for_the_signal(*_: Any, **__: Any) -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            cleaned.append(number)

    monkeypatch.setattr("kvwise.engine.model.OpenedModel.load", wait_for_the_signal)
    result = kvwise(*RUN)
    assert result.code == 128 + number
    assert "Traceback" not in result.err
    assert cleaned == [number]
    assert signal.getsignal(number) is signal.SIG_DFL
