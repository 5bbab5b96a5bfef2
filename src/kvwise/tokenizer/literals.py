"""Keeps what people say from being parsed as special tokens, though the template around it is.

A template writes special tokens as text, so its output must be parsed; what a message says must not be, or a user
could end their turn and begin another's. Before rendering, each special token's text in a message becomes one
character of private use that is nowhere else in the messages; after parsing, it becomes text again.
An answer's text is left as it is: templates look into it, and it comes from the model. Knows no template.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

Message = Mapping[str, object]

_MAX_DEPTH: Final = 64  # deeper messages are refused when they are rendered
# The planes of private use: no tokenizer's text holds them, and no template treats them in any special way.
_PRIVATE: Final = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


def without_special_texts(
    messages: Sequence[Message], special_texts: Mapping[str, int]
) -> tuple[list[Message], dict[str, str]]:
    """The messages with special tokens' texts replaced, and what each character stands for. Pure."""
    said = [text for message in messages if _is_said(message) for text in _texts(message)]
    found = [special for special in special_texts if any(special in text for text in said)]
    if not found:
        return list(messages), {}
    taken = {character for text in said for character in text if ord(character) >= _PRIVATE[0].start}
    free = (chr(code) for code in chain(*_PRIVATE) if chr(code) not in taken)
    # The longest first, as parsing would take them.
    characters = dict(zip(sorted(found, key=len, reverse=True), free, strict=False))
    replaced = [_replaced_in(m, characters) if _is_said(m) else m for m in messages]
    return replaced, {character: special for special, character in characters.items()}


def _is_said(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") != "assistant"


def _replaced_in(message: Message, characters: Mapping[str, str]) -> Message:
    return {key: value if key == "role" else _replaced(value, characters) for key, value in message.items()}


def _replaced(value: object, characters: Mapping[str, str], depth: int = 0) -> object:
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, str):
        for special, character in characters.items():
            value = value.replace(special, character)
        return value
    if isinstance(value, Mapping):
        return {key: _replaced(item, characters, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replaced(item, characters, depth + 1) for item in value]
    return value


def _texts(value: object, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)) and depth <= _MAX_DEPTH:
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item, depth + 1)
