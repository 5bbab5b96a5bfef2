"""The token ids of a conversation that grows, turn by turn, without touching those of earlier turns.

    first turn     render([u1]) ─────────────────────────▶ ids of the prompt
    the model      answers ──────────────────────────────▶ its own ids, kept as they are
    second turn    render([u1, a1, u2]) = render([u1]) + a1 + suffix;  only the suffix is tokenized

Keeping ids keeps the cache: text rendered and tokenized anew may split an answer into other tokens than the model
chose. That the template does put the suffix there is checked by rendering, once with the answer and once with a mark
in its place. Knows no cache and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kvwise.errors import TemplateError
from kvwise.frozen import dataclass
from kvwise.tokenizer.chat_template import ChatTemplate
from kvwise.tokenizer.literals import without_special_texts
from kvwise.tokenizer.tokenizer import Tokenizer

Message = Mapping[str, object]

_MARK: Final = "\ue000kvwise-answer\ue001"  # characters of private use: no template treats them in any special way


@dataclass(frozen=True, slots=True)
class TurnIds:
    """The prompt of a turn: the first `num_kept` of `ids` are the previous ids, unchanged; the rest is new.

    reason: why nothing could be kept and all of the conversation was rendered anew, "" otherwise.
    """

    ids: tuple[int, ...]
    num_kept: int = 0
    reason: str = ""

    @property
    def new_ids(self) -> tuple[int, ...]:
        return self.ids[self.num_kept :]

    @property
    def is_kept(self) -> bool:
        return not self.reason


def render_ids(
    tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message], **options: object
) -> list[int]:
    """The ids of a whole prompt that ends where the assistant's answer begins. options: as ChatTemplate.render's.

    Special tokens come from the template alone: their texts in what people say are text.
    """
    messages, literals = without_special_texts(messages, tokenizer.special_texts)
    text = template.render(messages, add_generation_prompt=True, **options)  # type: ignore[arg-type]
    return tokenizer.encode(text, add_special=True, parse_special=True, literals=literals)


def render_turn_ids(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    previous_ids: Sequence[int],
    previous_messages: Sequence[Message],
    new_messages: Sequence[Message],
    **options: object,
) -> TurnIds:
    """The prompt of the next turn: previous_ids and what the new messages add to them.

    previous_ids: the last prompt and the model's answer to it, with or without the token that ended it.
    previous_messages: what they say; the last one is the answer. new_messages: what follows it.
    Where the template does not leave what was before as it was, all is rendered anew and `reason` says so.
    Raises TemplateError where the template does not accept the messages.
    """
    messages = [*previous_messages, *new_messages]
    said, literals = without_special_texts(messages, tokenizer.special_texts)
    before = len(previous_messages)
    suffix, reason = _suffix(template, said[:before], said[before:], options)
    if suffix is None or not previous_ids:
        return TurnIds(tuple(render_ids(tokenizer, template, messages, **options)), 0, reason or "there is nothing yet")
    new_ids = tokenizer.encode(suffix, add_special=False, parse_special=True, continues=True, literals=literals)
    if previous_ids[-1] in tokenizer.stop_ids and new_ids[:1] == [previous_ids[-1]]:
        new_ids = new_ids[1:]  # the model said it itself
    return TurnIds((*previous_ids, *new_ids), len(previous_ids))


def _suffix(
    template: ChatTemplate, before: Sequence[Message], after: Sequence[Message], options: Mapping[str, object]
) -> tuple[str | None, str]:
    """The text that follows the last answer of `before`; or None, and why there is no such text."""
    if not before or before[-1].get("role") != "assistant" or not isinstance(before[-1].get("content"), str):
        return None, "the messages so far do not end with an answer"

    def render(messages: Sequence[Message]) -> str:
        return template.render(messages, add_generation_prompt=True, **options)  # type: ignore[arg-type]

    answer = str(before[-1]["content"])
    whole = render([*before, *after])
    try:
        prompt = render(before[:-1])
        marked = render([*before[:-1], {**before[-1], "content": _MARK}, *after])
    except TemplateError as problem:
        return None, f"the template does not render a part of the conversation: {problem.problem}"
    if not marked.startswith(prompt + _MARK):
        return None, "the template changes the earlier turns when new ones follow"
    suffix = marked[len(prompt) + len(_MARK) :]
    if _MARK in suffix:
        return None, "the template repeats the answer"
    # A template may trim the answer; the ids keep what the model said.
    if not whole.startswith(prompt) or not whole[len(prompt) :].endswith(suffix):
        return None, "the template changes the earlier turns when new ones follow"
    if whole[len(prompt) : len(whole) - len(suffix)].strip() != answer.strip():
        return None, "the template changes the answer when new turns follow"
    return suffix, ""


class Conversation:
    """Messages and the ids they have so far: ask, let the model answer, answer, ask again.

    options: variables for every render of the template.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        messages: Sequence[Message] = (),
        **options: object,
    ) -> None:
        self._tokenizer, self._template, self._options = tokenizer, template, options
        self._ids: tuple[int, ...] = ()
        self._before_ask: tuple[int, ...] = ()
        self.messages: list[Message] = list(messages)

    def ask(self, content: str, *, role: str = "user") -> TurnIds:
        """Add a message; the prompt for the model's answer. On an error nothing is added."""
        message = {"role": role, "content": content}
        if self._ids:
            turn = render_turn_ids(
                self._tokenizer, self._template, self._ids, self.messages, [message], **self._options
            )
        else:
            turn = TurnIds(
                tuple(render_ids(self._tokenizer, self._template, [*self.messages, message], **self._options))
            )
        self._before_ask = self._ids
        self.messages.append(message)
        self._ids = turn.ids
        return turn

    def take_back(self) -> None:
        """Undo the last `ask`, which got no answer."""
        self.messages.pop()
        self._ids = self._before_ask

    def answer(self, ids: Sequence[int], content: str) -> None:
        """Add the model's answer to the last prompt. ids: as generated, with or without the stop token."""
        self.messages.append({"role": "assistant", "content": content})
        self._ids = (*self._ids, *ids)
