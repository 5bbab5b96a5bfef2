"""The command line's entry: the table of commands, and the one place where an error becomes an exit code.

Exit codes: 0 ok, 1 the run failed, 2 bad usage or input, 3 does not fit, 130 interrupted, 143 terminated. Everything
heavy is imported by a command when it runs, so that --help stays fast.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import typer

from kvwise.cli.chat import chat_command
from kvwise.cli.devices import devices_command
from kvwise.cli.models import models_command
from kvwise.cli.plan import plan_command
from kvwise.cli.probe import probe_command
from kvwise.cli.run import run_command
from kvwise.cli.simulate import simulate_command
from kvwise.cli.study import study_command
from kvwise.cli.trace import trace_command
from kvwise.errors import KvwiseError

app = typer.Typer(
    name="kvwise",
    help="LLM inference that knows its cost before it runs.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich doubles the time of --help
)
app.command("run")(run_command)
app.command("chat")(chat_command)
app.command("plan")(plan_command)
app.command("probe")(probe_command)
app.command("simulate")(simulate_command)
app.command("trace")(trace_command)
app.command("models")(models_command)
app.command("devices")(devices_command)
app.command("study")(study_command)


def _print_version(value: bool) -> None:
    if value:
        from kvwise import __version__

        typer.echo(f"kvwise {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run a command and exit with its code. A user's mistake is one line on stderr, never a traceback."""
    _prepare_streams()
    try:
        with _ending_when_told_to():
            code = app(standalone_mode=False)
    except KvwiseError as error:
        code = _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        code = _fail("interrupted", 130)
    except BrokenPipeError:
        code = 1  # the reader of our output is gone: nothing left to say
    except OSError as error:
        code = _fail(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""), 1)
    except MemoryError:
        code = _fail("out of memory; free some, raise the limit (ulimit), or plan for less", 1)
    except Exception as error:
        code = _usage_exit(error)
    code = code if isinstance(code, int) else 0
    sys.exit(code if _flush_output() else code or 1)


def _usage_exit(error: Exception) -> int:
    """The exit code of click's own exceptions; anything else is a bug and keeps its traceback."""
    show = getattr(error, "show", None)
    if show is None:
        raise error
    show()
    return int(getattr(error, "exit_code", 2))


def _fail(message: str, code: int) -> int:
    from kvwise.cli.output import printable

    with suppress(OSError):
        print(f"kvwise: {printable(message)}", file=sys.stderr)
    return code


@contextmanager
def _ending_when_told_to() -> Iterator[None]:
    """SIGTERM and SIGHUP end as SystemExit, so that half-fetched files go and a hidden cursor comes back."""

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    before = {}
    with suppress(ValueError):  # not in the main thread
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prepare_streams() -> None:
    """Closed streams become the null device; text that a stream's encoding lacks is replaced instead of raising."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace" if name == "stderr" else "replace")


def _flush_output() -> bool:
    """Whether all output was written. What can't be is dropped, so that the interpreter does not try again at exit."""
    written = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            written = False
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return written
