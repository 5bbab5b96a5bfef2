"""Operators, methods and text of the template sandbox, each with its result's size known before it is made.

Only exact built-in types arrive here: chat_template.py copies its input into them, and templates can't make others.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from jinja2.runtime import Undefined

from kvwise.errors import TemplateError
from kvwise.tokenizer.budget import Budget, active_budget

_OPERATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "**": operator.pow,
    "%": operator.mod,
}
_SAME_SIZE_STR: Final = (
    "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier islower "
    "isnumeric isprintable isspace istitle isupper lower lstrip partition removeprefix removesuffix rfind rindex "
    "rpartition rsplit rstrip split splitlines startswith strip swapcase title upper"
)
_PADDING_STR: Final = ("center", "ljust", "rjust", "zfill")
METHODS: Final[Mapping[type, frozenset[str]]] = {
    str: frozenset([*_SAME_SIZE_STR.split(), *_PADDING_STR, "replace", "join"]),
    list: frozenset(["count", "index"]),
    tuple: frozenset(["count", "index"]),
    dict: frozenset(["get", "items", "keys", "values"]),
}
_LARGE_NUMBER: Final = re.compile(r"\d{4}")
# A conversion of % formatting: %s, %-10.3f, %(name)d. Widths taken from the arguments ("*") are not among them.
_CONVERSION: Final = re.compile(r"%(?:\([^()]*\))?[-+ #0]*\d{0,3}(?:\.\d{0,3})?[hlL]?[diouxXeEfFgGcrsa%]")


class Callback:
    """A function that templates may call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._function(*args, **kwargs)


def to_text(value: object) -> str:
    """What `{{ value }}` shows. Raises TemplateError for what is too large or no plain value."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, (bool, float, Undefined)):
        return str(value)
    budget = active_budget()
    budget.take_chars(budget.check_value(value, printable=True))
    return str(value)


def operate(sign: str, left: Any, right: Any) -> Any:
    """left `sign` right, refused before it is done if the result would be too large."""
    budget = active_budget()
    budget.take_steps()
    match sign:
        case "+":
            _check_sum(budget, left, right)
        case "*":
            _check_product(budget, left, right)
        case "**":
            if isinstance(left, int) and isinstance(right, int):
                budget.check_bits(abs(left).bit_length() * abs(right))
        case "%":
            if isinstance(left, str):
                return format_percent(left, right)
    result = _OPERATIONS[sign](left, right)
    if isinstance(result, (list, tuple)):
        budget.check_value(result)
    return result


def _check_sum(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        budget.take_chars(len(left) + len(right))
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        budget.check_length(len(left) + len(right))
    elif isinstance(left, int) and isinstance(right, int):
        budget.check_bits(max(left.bit_length(), right.bit_length()) + 1)


def _check_product(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        budget.check_bits(left.bit_length() + right.bit_length())
        return
    several, count = (left, right) if isinstance(right, int) else (right, left)
    if isinstance(count, int) and isinstance(several, str):
        budget.take_chars(len(several) * max(count, 0))
    elif isinstance(count, int) and isinstance(several, (list, tuple)):
        budget.check_length(len(several) * max(count, 0))


def format_percent(template: str, values: object) -> str:
    """template % values, with widths of at most three digits and none from the arguments."""
    budget = active_budget()
    conversions = _CONVERSION.findall(template)
    if template.count("%") != sum(c.count("%") for c in conversions):
        raise TemplateError(f"the chat template formats with {template[:40]!r}", expected="plain conversions")
    largest = budget.check_value(values, printable=True)
    budget.take_chars(len(template) + len(conversions) * (1000 + largest))
    return template % values


def check_format_spec(spec: str) -> None:
    """Raise TemplateError for a format spec with a large or an indirect width."""
    if "{" in spec or _LARGE_NUMBER.search(spec):
        raise TemplateError(f"the chat template formats with {spec[:40]!r}", expected="widths of at most three digits")


def checked_method_call(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a listed method of a built-in value."""
    budget = active_budget()
    if isinstance(method.__self__, str):
        if method.__name__ in _PADDING_STR:
            budget.take_chars(whole_number(args[0] if args else None))
        elif method.__name__ == "replace":
            return replace_text(method.__self__, *args, **kwargs)
        elif method.__name__ == "join":
            return join_texts(method.__self__, *args, **kwargs)
    result = method(*args, **kwargs)
    if isinstance(result, str):
        budget.take_chars(len(result))
    elif method.__name__ in ("items", "keys", "values"):
        return list(result)
    elif isinstance(result, (list, tuple)) and method.__name__ != "get":
        budget.check_value(result)
    return result


def replace_text(text: str, old: object, new: object, count: object = -1) -> str:
    """text.replace, with the result's length known first."""
    if not isinstance(old, str) or not isinstance(new, str):
        raise TypeError("replace takes strings")
    limit = whole_number(count)
    places = text.count(old) if limit < 0 else min(limit, text.count(old))
    active_budget().take_chars(len(text) + places * max(0, len(new) - len(old)))
    return text.replace(old, new, limit)


def join_texts(separator: str, items: Any) -> str:
    """separator.join over texts and plain values, with the result's length known first."""
    budget = active_budget()
    texts: list[str] = []
    chars = 0
    for item in items:
        budget.take_steps()
        texts.append(to_text(item))
        chars += len(texts[-1]) + len(separator)
        if chars > budget.value_chars:
            break
    budget.take_chars(chars)
    return separator.join(texts)


def whole_number(value: object) -> int:
    """Raises TypeError for anything but an int; TemplateError for an absurd one."""
    if not isinstance(value, int):
        raise TypeError(f"a whole number is needed, not {type(value).__name__}")
    active_budget().check_bits(value.bit_length())
    return int(value)
