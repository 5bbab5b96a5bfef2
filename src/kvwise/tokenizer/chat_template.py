"""Messages to a prompt's text, by the template that a model brings. Owns where templates are found and their inputs.

Conventions: transformers' apply_chat_template (huggingface.co/docs/transformers, chat templating). The sandbox that a
template runs in, and its limits, are in sandbox.py and budget.py.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvwise.errors import TemplateError
from kvwise.spec.fields import shown
from kvwise.tokenizer.budget import Budget, spending
from kvwise.tokenizer.gguf import is_gguf_vocabulary
from kvwise.tokenizer.model_files import MAX_SETTINGS_BYTES, read_settings, read_text
from kvwise.tokenizer.tokenizer import Tokenizer
from kvwise.tokenizer.vocabulary import is_sound_text

if TYPE_CHECKING:
    from jinja2 import Template

    from kvwise.tokenizer.sandbox import BoundedEnvironment

_DEFAULT: Final = "default"
_FOR_TOOLS: Final = "tool_use"
_MAX_SOURCE_CHARS: Final = 2**16  # twice the longest template of a known model
_MAX_TAGS: Final = 4096  # compiling takes about 0.1 ms a tag
_MAX_DEPTH: Final = 64
_FILE_IN_TRACEBACK: Final = "<template>"


class ChatTemplate:
    """A model's chat template, compiled when it is first used.

    source: the template. named: further ones by name; "tool_use" is taken when tools are given.
    bos_token, eos_token: what the template may write for them.
    """

    def __init__(
        self, source: str, *, bos_token: str = "", eos_token: str = "", named: Mapping[str, str] | None = None
    ) -> None:
        self._sources = {**(named or {}), _DEFAULT: source}
        self._compiled: dict[str, Template] = {}
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    @property
    def source(self) -> str:
        return self._sources[_DEFAULT]

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[object] | None = None,
        **extra: object,
    ) -> str:
        """The prompt's text. Everything given must be plain: str, numbers, bool, None, lists, dicts with str keys.

        add_generation_prompt: end where the assistant's answer begins. extra: further variables of the template.
        Raises TemplateError where the template does not compile, refuses the messages, fails, or exceeds its limits.
        """
        size = _Size()
        variables = {
            **self._tokens,
            "documents": None,
            **{name: size.plain_copy(value) for name, value in extra.items()},
            "messages": size.plain_copy(list(messages)),
            "tools": None if tools is None else size.plain_copy(list(tools)),
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._compile(_FOR_TOOLS if tools is not None and _FOR_TOOLS in self._sources else _DEFAULT)
        pieces: list[str] = []
        with spending(Budget(size.chars, size.nodes)) as budget:
            try:
                for piece in template.root_render_func(template.new_context(variables)):
                    budget.take_output(len(piece))
                    pieces.append(piece)
            except Exception as problem:
                raise _explained(problem, template) from None
        text = "".join(pieces)
        if not is_sound_text(text):
            raise TemplateError("the chat template writes text that UTF-8 can't hold")
        return text

    def _compile(self, name: str) -> Template:
        if name not in self._compiled:
            self._compiled[name] = _compile(self._sources[name])
        return self._compiled[name]


def load_chat_template(
    metadata: Mapping[str, object], folder: Path | None, tokenizer: Tokenizer
) -> ChatTemplate | None:
    """The chat template of a model, None if it has none. metadata and folder: as load_tokenizer takes them.

    Raises TemplateError or TokenizerError for one that is not text, or a file that can't be read.
    """
    if is_gguf_vocabulary(metadata):
        named = _templates_of_gguf(metadata)
    else:
        named = {} if folder is None else _templates_of_folder(folder)
    named = {name: source for name, source in named.items() if source.strip()}  # an empty one is none
    if not named:
        return None
    source = named.pop(_DEFAULT, None) or next(iter(named.values()))
    return ChatTemplate(
        source,
        bos_token=tokenizer.token_text(tokenizer.bos_id),
        eos_token=tokenizer.token_text(tokenizer.eos_id),
        named=named,
    )


def _templates_of_gguf(metadata: Mapping[str, object]) -> dict[str, str]:
    key = "tokenizer.chat_template"
    found = {_DEFAULT: metadata[key]} if metadata.get(key) is not None else {}
    names = metadata.get("tokenizer.chat_templates")
    for name in names if isinstance(names, (list, tuple)) else ():
        if metadata.get(f"{key}.{name}") is not None:
            found[str(name)] = metadata[f"{key}.{name}"]
    return {name: _checked_source(source, key) for name, source in found.items()}


def _templates_of_folder(folder: Path) -> dict[str, str]:
    text = read_text(folder, "chat_template.jinja", MAX_SETTINGS_BYTES)
    if text is not None:
        return {_DEFAULT: _checked_source(text, f"{folder}/chat_template.jinja")}
    for file_name in ("tokenizer_config.json", "chat_template.json"):
        where = f"chat_template of {folder}/{file_name}"
        value = read_settings(folder, file_name).get("chat_template")
        if isinstance(value, list):
            rows = [row if isinstance(row, dict) else {} for row in value]
            return {str(row.get("name")): _checked_source(row.get("template"), where) for row in rows}
        if value is not None:
            return {_DEFAULT: _checked_source(value, where)}
    return {}


def _checked_source(source: object, where: str) -> str:
    if not isinstance(source, str):
        raise TemplateError(f"{where} is {shown(source)}", expected="the text of a template")
    return source


@cache
def _environment() -> BoundedEnvironment:
    from kvwise.tokenizer.sandbox import BoundedEnvironment

    return BoundedEnvironment()


def _compile(source: str) -> Template:
    from jinja2 import TemplateSyntaxError

    tags = source.count("{{") + source.count("{%")
    if len(source) > _MAX_SOURCE_CHARS or tags > _MAX_TAGS:
        raise TemplateError(
            f"the chat template has {len(source)} characters and {tags} tags",
            expected=f"at most {_MAX_SOURCE_CHARS} and {_MAX_TAGS}",
        )
    try:
        return _environment().from_string(source)
    except TemplateError:
        raise
    except TemplateSyntaxError as problem:
        raise TemplateError(f"the chat template is wrong on line {problem.lineno}: {_message(problem)}") from None
    except Exception as problem:
        raise TemplateError(f"the chat template can't be compiled: {_message(problem)}") from None


def _explained(problem: Exception, template: Template) -> TemplateError:
    """The failure of a template as one error, with the template's line where that is known."""
    from kvwise.tokenizer.template_filters import TemplateRefusal

    if isinstance(problem, TemplateError):
        return problem
    if isinstance(problem, TemplateRefusal):
        return TemplateError(f"the chat template refuses these messages: {problem}")
    if isinstance(problem, RecursionError):
        return TemplateError("the chat template calls itself too deeply")
    frames = traceback.walk_tb(problem.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == _FILE_IN_TRACEBACK]
    where = f" on line {template.get_corresponding_lineno(lines[-1])}" if lines else ""
    return TemplateError(f"the chat template fails{where}: {_message(problem)}")


def _message(problem: Exception) -> str:
    text = " ".join(str(problem).split()) or type(problem).__name__
    return text if len(text) <= 300 else text[:297] + "..."


class _Size:
    """Copies plain values, so that a template meets nothing else, and counts what they hold."""

    def __init__(self) -> None:
        self.chars = self.nodes = 0

    def plain_copy(self, value: object, depth: int = 0) -> object:
        self.nodes += 1
        if depth > _MAX_DEPTH:
            raise TemplateError("the messages are nested too deeply", expected=f"{_MAX_DEPTH} levels at most")
        if isinstance(value, str):
            self.chars += len(value)
            return str(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            self.chars += sum(map(len, value))
            return {str(key): self.plain_copy(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.plain_copy(item, depth + 1) for item in value]
        raise TemplateError(
            f"the messages hold a {type(value).__name__}", expected="text, numbers, booleans, lists and dictionaries"
        )
