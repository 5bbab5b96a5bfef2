"""What every command that runs a model does first: open it, encode the prompt, say what it will cost, load it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kvwise.cli.output import loading_bar
from kvwise.errors import NotMeasured, UsageError
from kvwise.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from kvwise.engine.model import LoadedModel, OpenedModel, Settings
    from kvwise.planner.machine import MachineForecast

DEFAULT_MODEL = "smollm2-135m-instruct"
_MAX_STDIN_BYTES = 2**26  # ten million tokens of text, which no model holds; /dev/zero has more


def model_and_prompt(arguments: Sequence[str]) -> tuple[str, str]:
    """[MODEL] PROMPT from the arguments; the prompt may come from stdin, as '-' or by leaving it out.

    One argument is the prompt, unless it names a model and the prompt is piped in. Raises UsageError.
    """
    if len(arguments) > 2:
        raise UsageError(f"{len(arguments)} arguments", expected="[MODEL] PROMPT", action="put the prompt in quotes")
    piped = not sys.stdin.isatty()
    if len(arguments) == 2:
        model, prompt = arguments
    elif len(arguments) == 1:
        model, prompt = (arguments[0], "-") if piped and _names_a_model(arguments[0]) else (DEFAULT_MODEL, arguments[0])
    else:
        model, prompt = DEFAULT_MODEL, "-"
    if prompt == "-":
        if not piped:
            raise UsageError("there is no prompt", expected="[MODEL] PROMPT, or a prompt on standard input")
        prompt = _read_stdin()
    if not prompt:
        raise UsageError("the prompt is empty", expected="at least one character")
    if any("\ud800" <= c <= "\udfff" for c in prompt):  # bytes of an argument that the locale could not decode
        raise UsageError("the prompt is not UTF-8 text")
    return model, prompt


def _read_stdin() -> str:
    try:
        raw = sys.stdin.buffer.read(_MAX_STDIN_BYTES + 1)
        if len(raw) > _MAX_STDIN_BYTES:
            raise UsageError(f"standard input holds more than {format_bytes(_MAX_STDIN_BYTES)}", expected="a prompt")
        return raw.decode("utf-8").removesuffix("\n")
    except OSError as error:
        raise UsageError(f"standard input can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 text (byte {error.start})") from None


def _names_a_model(argument: str) -> bool:
    from kvwise.checkpoint.resolve import resolve_model
    from kvwise.errors import KvwiseError

    try:
        resolve_model(argument, allow_download=False)
    except KvwiseError:
        return False
    return True


def open_model(name: str, console: Console, *, backend: str, kv_dtype: str, weights: str | None = None) -> OpenedModel:
    """Open a model, and say so where it must be downloaded first."""
    from kvwise.engine import model

    return model.open_model(name, backend=backend, kv_dtype=kv_dtype, weights=weights, progress=console.print)


def encode_prompt(opened: OpenedModel, prompt: str, *, raw: bool) -> list[int]:
    """The ids of `prompt`: through the chat template as a user's turn, or as it is."""
    from kvwise.engine.admission import check_text_can_fit
    from kvwise.tokenizer import render_ids

    template = None if raw else opened.chat_template
    check_text_can_fit(opened.tokenizer.count_at_least(prompt), opened.spec.max_positions)
    if template is None:
        return opened.encode(prompt)
    return render_ids(opened.tokenizer, template, [{"role": "user", "content": prompt}])


def load(opened: OpenedModel, settings: Settings, console: Console, stack: ExitStack) -> LoadedModel:
    """Load with a progress bar on a terminal; closed with `stack`."""
    with loading_bar(console, f"loading {opened.name}") as progress:
        return stack.enter_context(opened.load(settings, progress, notify=console.print))


def tell_kept_file(opened: OpenedModel, settings: Settings, console: Console) -> None:
    """Say where weights are kept, if they are, and how large that file is."""
    from kvwise.units import format_bytes

    kept = opened.kept_file(settings)
    if kept is not None:
        there = "read from" if kept.path.exists() else "to be kept in"
        console.print(f"weights {there} {kept.path}: {format_bytes(kept.nbytes)} on disk", style="dim")


def forecast(
    opened: OpenedModel, settings: Settings, prompt_tokens: int, output_tokens: int
) -> MachineForecast | NotMeasured:
    """Predicted TTFT and TPOT on this machine, or the reason why there is no prediction."""
    from kvwise.planner.machine import forecast_on, read_machine

    options = opened.load_options(settings)
    try:
        machine = read_machine(opened.backend.name, options.threads, opened.stream_kinds)
        return forecast_on(machine, opened, prompt_tokens, output_tokens, options.limits.max_tokens)
    except NotMeasured as reason:
        return reason
