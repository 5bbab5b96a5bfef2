"""The filters, tests and functions that a chat template may use: those of jinja2 that can be bounded, and HF's own.

tojson, raise_exception and strftime_now are what transformers adds to jinja2 for chat templates
(huggingface.co/docs/transformers, chat templating). Unknown names are refused when the template is compiled.
"""

from __future__ import annotations

import functools
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import GeneratorType
from typing import Any, Final, NoReturn

from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import Undefined
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import Cycler, Joiner, Namespace

from kvwise.errors import TemplateError
from kvwise.tokenizer.budget import active_budget
from kvwise.tokenizer.sandbox_operations import (
    Callback,
    format_percent,
    join_texts,
    operate,
    replace_text,
    to_text,
    whole_number,
)

_MAX_RANGE: Final = 100_000  # as in jinja2's own sandbox
_MAX_INDENT: Final = 32
_STEPS_OF_A_FILTER: Final = 8  # some walk or sort all that they are given
# Filters of jinja2 whose work and result are no larger than their input.
_BOUNDED_FILTERS: Final = (
    "abs capitalize count d default dictsort first float groupby int items last length lower map max min reject "
    "rejectattr reverse select selectattr sort title trim truncate unique upper wordcount"
)
_MAKE_CONTAINERS: Final = {"dictsort", "groupby", "reverse", "sort"}
_TAKE_ALL: Final = {"groupby", "last", "max", "min", "reverse", "sort", "unique"}  # before they give anything
_TAKE_TEXT: Final = {"capitalize", "lower", "title", "trim", "truncate", "upper", "wordcount"}
_STRFTIME: Final = re.compile(r"(?:[^%]|%[-_0^#]?[A-Za-z%])*")


class TemplateRefusal(Exception):
    """The template called raise_exception: it does not accept these messages."""


def _bounded(name: str, function: Any) -> Callable[..., Any]:
    """The filter or test, counted, its input and result checked."""
    value_at = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)  # keeps jinja2's mark of what is to be passed first
    def counted(*args: Any, **kwargs: Any) -> Any:
        budget = active_budget()
        budget.take_steps(_STEPS_OF_A_FILTER)
        if name in _TAKE_TEXT:
            args = (*args[:value_at], to_text(args[value_at]), *args[value_at + 1 :])
        elif name in _TAKE_ALL and isinstance(args[value_at], Iterator):
            args = (*args[:value_at], _gathered(args[value_at]), *args[value_at + 1 :])
        result = function(*args, **kwargs)
        if isinstance(result, GeneratorType):
            return _counted_items(result)
        if isinstance(result, str):
            budget.take_chars(len(result))
        elif name in _MAKE_CONTAINERS and isinstance(result, (list, tuple)):
            budget.check_value(result)
        elif isinstance(result, Iterator):
            return _counted_items(result)
        return result

    return counted


def _counted_items(items: Iterable[object]) -> Iterator[object]:
    budget = active_budget()
    for item in items:
        budget.take_steps()
        yield item


def _gathered(items: Any) -> list[Any]:
    """A list of the items, checked as it grows."""
    budget = active_budget()
    out: list[Any] = []
    for item in items:
        budget.take_steps()
        out.append(item)
        budget.check_length(len(out))
    budget.check_value(out)
    return out


def _join(items: Any, d: object = "", attribute: object = None) -> str:
    if attribute is not None:
        items = [_attribute(item, attribute) for item in _gathered(items)]
    return join_texts(to_text(d), items)


def _attribute(item: Any, name: Any) -> Any:
    try:
        return item[name]
    except (TypeError, LookupError):
        return Undefined(obj=item, name=str(name))


def _indent(text: object, width: object = 4, first: bool = False, blank: bool = False) -> str:
    margin = width if isinstance(width, str) else " " * min(max(0, whole_number(width)), _MAX_INDENT + 1)
    if len(margin) > _MAX_INDENT:
        raise TemplateError("the chat template indents too far", expected=f"at most {_MAX_INDENT}")
    source = to_text(text)
    active_budget().take_chars(len(source) + (source.count("\n") + 2) * len(margin))
    lines = source.split("\n")
    return "\n".join(
        margin + line if (first if index == 0 else line or blank) else line for index, line in enumerate(lines)
    )


def _round(value: Any, precision: object = 0, method: object = "common") -> float:
    digits = whole_number(precision)
    if not -30 <= digits <= 30 or method != "common":
        raise TemplateError("the chat template rounds in a way that is not known", expected="at most 30 digits")
    return round(float(value), digits)


def _sum(items: Any, attribute: object = None, start: Any = 0) -> Any:
    total = start
    for item in items:
        value = item if attribute is None else _attribute(item, attribute)
        if not isinstance(value, (int, float)) or not isinstance(total, (int, float)):
            raise TypeError("sum adds numbers only")
        total = operate("+", total, value)
    return total


def _batch(items: Any, linecount: object, fill_with: object = None) -> list[list[object]]:
    size, values = whole_number(linecount), _gathered(items)
    if size < 1:
        raise TypeError("batch needs at least 1 in a line")
    active_budget().check_length(len(values) + (size if fill_with is not None else 0))
    lines = [values[at : at + size] for at in range(0, len(values), size)]
    if fill_with is not None and lines:
        lines[-1] += [fill_with] * (size - len(lines[-1]))
    active_budget().check_value(lines)
    return lines


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: object = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """json.dumps with the parameters of transformers' tojson: no HTML escapes, non-ASCII text as it is."""
    budget = active_budget()
    margin = indent if isinstance(indent, str) else "" if indent is None else " " * min(whole_number(indent), 99)
    marks = [str(mark) for mark in separators] if separators is not None else []
    if len(margin) > _MAX_INDENT or any(len(mark) > 8 for mark in marks) or len(marks) not in (0, 2):
        raise TemplateError("the chat template's JSON layout is not sensible", expected="small indents and separators")
    chars = budget.check_value(value)
    text = json.dumps(
        value,
        ensure_ascii=bool(ensure_ascii),
        indent=None if indent is None else margin,
        separators=(marks[0], marks[1]) if marks else None,
        sort_keys=bool(sort_keys),
    )
    budget.take_chars(max(len(text), chars))
    return text


def _range(*args: Any) -> range:
    numbers = range(*args)
    if len(args) > 3 or numbers[_MAX_RANGE:]:
        raise TemplateError("the chat template counts too far", expected=f"a range of at most {_MAX_RANGE}")
    return numbers


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    made: dict[Any, Any] = dict(*args, **kwargs)
    active_budget().check_value(made)
    return made


def _raise_exception(message: object = "") -> NoReturn:
    raise TemplateRefusal(to_text(message)[:500])


def _strftime_now(pattern: object) -> str:
    if not isinstance(pattern, str) or len(pattern) > 200 or not _STRFTIME.fullmatch(pattern):
        raise TemplateError("the chat template formats the time in a way that is not known")
    return datetime.now().strftime(pattern)


def _center(text: object, width: object = 80) -> str:
    active_budget().take_chars(whole_number(width))
    return to_text(text).center(whole_number(width))


def _escape(text: object) -> str:
    active_budget().take_chars(6 * len(to_text(text)))
    return html.escape(to_text(text)).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: _bounded(name, JINJA_FILTERS[name]) for name in _BOUNDED_FILTERS.split()},
    "batch": _batch,
    "center": _center,
    "e": _escape,
    "escape": _escape,
    "format": lambda text, *args, **kwargs: format_percent(to_text(text), kwargs or args),
    "indent": _indent,
    "join": _join,
    "list": _gathered,
    "replace": lambda text, old, new, count=-1: replace_text(to_text(text), to_text(old), to_text(new), count),
    "round": _round,
    "safe": to_text,
    "string": to_text,
    "strip": lambda text: to_text(text).strip(),
    "sum": _sum,
    "tojson": _to_json,
}
_UNBOUNDED_TESTS: Final = ("escaped", "filter", "lower", "test", "upper")
TESTS: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: _bounded("", test) for name, test in JINJA_TESTS.items() if name not in _UNBOUNDED_TESTS},
    "lower": lambda value: to_text(value).islower(),
    "upper": lambda value: to_text(value).isupper(),
}
GLOBALS: Final[Mapping[str, object]] = {
    "cycler": Callback(Cycler),
    "dict": Callback(_dict),
    "joiner": Callback(Joiner),
    "namespace": Callback(Namespace),
    "raise_exception": Callback(_raise_exception),
    "range": Callback(_range),
    "strftime_now": Callback(_strftime_now),
    "true": True,
    "false": False,
    "none": None,
}
