"""What the Python API is given, brought into one form: a list of prompts, and sampling parameters for each. Pure."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex, TypeGuard

from kvwise.errors import UsageError
from kvwise.spec.fields import shown
from kvwise.spec.request import SamplingParams

Prompt = str | Sequence[int]
Message = Mapping[str, object]

_EXPECTED = "text, token ids, or a list of these"


def listed_prompts(prompts: Prompt | Sequence[Prompt]) -> list[str | tuple[int, ...]]:
    """Each prompt as text or as a tuple of ids. Token ids alone are one prompt; an empty list is no prompt at all.

    Anything that counts as an integer is an id, numpy's arrays included. Raises UsageError for what is neither.
    """
    if isinstance(prompts, str):
        return [prompts]
    items = _items(prompts, "the prompts")
    ids = [operator.index(item) for item in items if _is_id(item)]
    if ids and len(ids) == len(items):
        return [tuple(ids)]
    return [_one_prompt(item, i) for i, item in enumerate(items)]


def listed_messages(messages: Sequence[Message]) -> list[Message]:
    """The messages of a chat. Raises UsageError unless there is one, each with a role; the template judges the rest."""
    listed = list(messages) if isinstance(messages, (list, tuple)) else []
    if not listed:
        raise UsageError(f"the messages are {shown(messages)}", expected="a list of at least one message")
    wrong = next((m for m in listed if not isinstance(m, Mapping) or not isinstance(m.get("role"), str)), None)
    if wrong is not None or None in listed:
        raise UsageError(f"a message is {shown(wrong)}", expected='{"role": ..., "content": ...}')
    return listed


def listed_sampling(sampling: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """Parameters for each of `count` prompts. Raises UsageError for another number of them, or for something else."""
    if sampling is None or isinstance(sampling, SamplingParams):
        return [sampling or SamplingParams()] * count
    listed = list(sampling) if isinstance(sampling, (list, tuple)) else [sampling]
    params = [item for item in listed if isinstance(item, SamplingParams)]
    if len(params) < len(listed):
        wrong = next(item for item in listed if not isinstance(item, SamplingParams))
        raise UsageError(f"sampling is {_shown(wrong)}", expected="SamplingParams, or a list of one for each prompt")
    if len(params) != count:
        raise UsageError(f"{len(params)} sampling parameters for {count} prompts", expected="one, or one each")
    return params


def _one_prompt(prompt: object, index: int) -> str | tuple[int, ...]:
    if isinstance(prompt, str):
        return prompt
    items = _items(prompt, f"prompt {index}")
    ids = [operator.index(item) for item in items if _is_id(item)]
    if len(ids) < len(items):
        wrong = next(item for item in items if not _is_id(item))
        raise UsageError(f"prompt {index} holds {_shown(wrong)}", expected="integers, which are token ids")
    return tuple(ids)


def _items(value: object, what: str) -> list[object]:
    """The items of a sequence; text in bytes, numbers, mappings and sets are none."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise UsageError(f"{what}: {_shown(value)}", expected=_EXPECTED, action="decode bytes into text first")
    if not isinstance(value, Iterable) or isinstance(value, (dict, set, frozenset)):
        raise UsageError(f"{what}: {_shown(value)}", expected=_EXPECTED)
    try:
        return list(value)
    except TypeError:  # a numpy array without dimensions
        raise UsageError(f"{what}: {_shown(value)}", expected=_EXPECTED) from None


def _is_id(value: object) -> TypeGuard[SupportsIndex]:
    """Arrays of one element would pass for integers too, so what has a length is none."""
    return isinstance(value, SupportsIndex) and not isinstance(value, bool) and not hasattr(value, "__len__")


def _shown(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
