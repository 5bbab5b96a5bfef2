"""`kvwise chat`: a conversation that computes only what is new in each turn.

The token ids of earlier turns are kept as they were, the model's own among them, so that the cache's blocks are found
again: a turn computes its new tokens and at most the remainder of one block.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from kvwise.cli import options as o

if TYPE_CHECKING:
    from rich.console import Console

    from kvwise.engine.engine import Engine
    from kvwise.engine.state import RequestOutput
    from kvwise.errors import DoesNotFit
    from kvwise.spec.request import SamplingParams
    from kvwise.tokenizer import Conversation, TurnIds

_LEAVE = ("/exit", "/quit")


def chat_command(
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", show_default=False, help="A path or a name; by default the bundled one.")
    ] = "smollm2-135m-instruct",
    system: Annotated[Optional[str], typer.Option(help="A system message to begin with.")] = None,  # noqa: UP045
    max_tokens: o.MaxTokens = 256,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    seed: o.Seed = None,
    stop: o.Stop = None,
    min_tokens: o.MinTokens = 0,
    context: o.Context = None,
    threads: o.Threads = None,
    kv_dtype: o.KvDtype = "f16",
    weights: o.Weights = None,
    weights_cache: o.WeightsCache = None,
    backend: o.BackendName = "native",
    as_json: o.Json = False,
) -> None:
    """Talk with MODEL, line by line; /exit or end of input leaves. --json prints one object per turn."""
    from kvwise.cli.output import people
    from kvwise.cli.session import load, open_model
    from kvwise.engine.model import Settings
    from kvwise.errors import UsageError
    from kvwise.tokenizer import Conversation

    sampling = o.sampling_params(max_tokens, min_tokens, temperature, top_k, top_p, min_p, seed, stop, False)
    console = people()
    with ExitStack() as stack:
        opened = stack.enter_context(open_model(model, console, backend=backend, kv_dtype=kv_dtype, weights=weights))
        template = opened.chat_template
        if template is None:
            raise UsageError(f"{model} has no chat template", action="use `kvwise run --raw` with a prompt of your own")
        settings = Settings(max_context=context, threads=threads, weights_cache=weights_cache)
        engine = load(opened, settings, console, stack).engine
        begin = [{"role": "system", "content": system}] if system else []
        session = _Chat(engine, Conversation(opened.tokenizer, template, begin), sampling, console, as_json)
        for line in _lines(console):
            session.turn(line)
        if session.refused is not None and not sys.stdin.isatty():
            raise typer.Exit(session.refused.exit_code)


def _lines(console: Console) -> Iterator[str]:
    """What the user says, turn by turn; a prompt is shown only on a terminal, where a line can be typed again.

    Raises UsageError for piped input that is not UTF-8.
    """
    from kvwise.errors import UsageError

    while True:
        if sys.stdin.isatty():
            console.print(">>> ", end="", style="bold")
        raw = sys.stdin.buffer.readline()
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as problem:
            if not sys.stdin.isatty():
                raise UsageError(f"a line of standard input is not UTF-8 text (byte {problem.start})") from None
            console.print("kvwise: that line is not UTF-8 text; type it again", style="red")
            continue
        if not line or line.strip() in _LEAVE:
            return
        if line.strip():
            yield line.rstrip("\n")


@dataclass
class _Chat:
    engine: Engine
    conversation: Conversation
    sampling: SamplingParams
    console: Console
    as_json: bool
    turns: int = 0
    refused: DoesNotFit | None = None

    def turn(self, line: str) -> None:
        """One question and its answer. A turn that does not fit is refused, and the conversation goes on without it."""
        from kvwise.cli.output import answer, print_json, printable
        from kvwise.errors import DoesNotFit

        asked = self.conversation.ask(line)
        self.turns += 1
        try:
            output = self._generate(f"turn-{self.turns}", asked)
        except DoesNotFit as error:
            self.conversation.take_back()
            self.refused = error
            if self.as_json:
                print_json({"error": str(error)})
            self.console.print(f"kvwise: {printable(str(error))}", style="red")
            return
        self.conversation.answer(output.ids, output.text)
        if self.as_json:
            print_json(_turn_json(output, asked))
            return
        answer("\n")
        self.console.print(printable(_turn_line(output, asked)), style="dim")

    def _generate(self, name: str, asked: TurnIds) -> RequestOutput:
        """Stream the answer; an interrupt ends it early and keeps what was said."""
        from kvwise.cli.output import answer
        from kvwise.spec.request import Request

        self.engine.add_request(Request(name, asked.ids, self.sampling))
        try:
            for report in self.engine.run():
                if not self.as_json:
                    answer(report.parts[0].text)
        except KeyboardInterrupt:
            if name not in self.engine.outputs:  # else it came after the last token
                self.engine.abort(name)
        return self.engine.outputs.pop(name)


def _turn_line(output: RequestOutput, asked: TurnIds) -> str:
    from kvwise.units import format_seconds

    prompt = len(output.prompt_ids)
    why = f" ({asked.reason})" if asked.reason else ""
    ttft = "" if output.ttft_s is None else f", first token after {format_seconds(output.ttft_s)}"
    return (
        f"{prompt} prompt tokens: {output.num_cached_tokens} from the cache, "
        f"{prompt - output.num_cached_tokens} computed{why}; {len(output.ids)} output tokens{ttft}"
    )


def _turn_json(output: RequestOutput, asked: TurnIds) -> dict[str, Any]:
    return {
        "text": output.text,
        "prompt_ids": list(output.prompt_ids),
        "ids": list(output.ids),
        "finish_reason": output.finish_reason,
        "num_cached_tokens": output.num_cached_tokens,
        "num_computed_tokens": len(output.prompt_ids) - output.num_cached_tokens,
        "rendered_anew": asked.reason,
        "ttft_s": output.ttft_s,
        "tpot_s": output.tpot_s,
    }
