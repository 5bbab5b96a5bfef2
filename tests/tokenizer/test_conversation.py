"""Conversations that grow by ids: earlier turns stay as they are, whatever tokens the model chose."""

from __future__ import annotations

import pytest

from kvwise.errors import TemplateError
from kvwise.tokenizer import ChatTemplate, Conversation, Tokenizer, render_ids, render_turn_ids

CHAT_ML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
INSTRUCT = (  # the form of Llama 2 and Mistral
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content|trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
TIGHT = INSTRUCT.replace("' ' + m.content|trim + ' ' + eos_token", "m.content + eos_token")
FORGETS = (
    "{% set last = messages|length - 1 %}{% for m in messages %}{% if m.role == 'assistant' and loop.index0 < last %}"
    "{{ '<|im_start|>assistant\n' + m.content.split('</think>')[-1] + '<|im_end|>\n' }}{% else %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
STRICT = "{% if messages[-1].role == 'user' and messages|length > 1 %}{{ raise_exception('no') }}{% endif %}" + CHAT_ML
USER, AGAIN = {"role": "user", "content": "the dog"}, {"role": "user", "content": "the tree"}


def odd_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The text byte by byte: tokens that encoding it would never give."""
    return [
        next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == bytes([b])) for b in text.encode()
    ]


@pytest.mark.parametrize("ended", [True, False], ids=["ended by its token", "ended by the limit"])
def test_ids_of_earlier_turns_are_kept_and_the_end_of_turn_stands_once(byte_level: Tokenizer, ended: bool) -> None:
    template = ChatTemplate(CHAT_ML)
    first = render_ids(byte_level, template, [USER])
    answer = odd_ids(byte_level, "a mother") + ([2] if ended else [])
    said = [USER, {"role": "assistant", "content": "a mother"}]
    turn = render_turn_ids(byte_level, template, [*first, *answer], said, [AGAIN])
    assert turn.is_kept
    assert turn.num_kept == len(first) + len(answer)
    assert list(turn.ids[: turn.num_kept]) == first + answer
    text = byte_level.decode(turn.ids, skip_special=False)
    assert text == template.render([*said, AGAIN], add_generation_prompt=True)
    assert turn.new_ids[:1] == ((2,) if not ended else tuple(odd_ids(byte_level, "\n")))


def test_a_turn_is_what_rendering_all_would_give_when_the_model_chose_usual_tokens(byte_level: Tokenizer) -> None:
    conversation = Conversation(byte_level, ChatTemplate(CHAT_ML), [{"role": "system", "content": "a cache"}])
    for question, answer in (("the dog", "there"), ("other", "a cache keeps"), ("again", "x")):
        turn = conversation.ask(question)
        assert list(turn.ids) == render_ids(byte_level, ChatTemplate(CHAT_ML), conversation.messages)
        conversation.answer(byte_level.encode(answer, add_special=False, parse_special=False), answer)
    assert turn.num_kept > 0
    assert [m["role"] for m in conversation.messages] == ["system", *["user", "assistant"] * 3]


def test_text_that_continues_an_answer_is_tokenized_as_such(sentencepiece: Tokenizer) -> None:
    template = ChatTemplate(TIGHT, bos_token="<s>", eos_token="</s>")
    conversation = Conversation(sentencepiece, template)
    first = conversation.ask("the dog")
    assert first.ids.count(1) == 1
    answer = sentencepiece.encode("the mother", add_special=False, parse_special=False, continues=True)
    conversation.answer(answer, "the mother")
    second = conversation.ask("other")
    assert second.is_kept
    assert second.ids == (*first.ids, *answer, *second.new_ids)
    assert second.new_ids[0] == 2
    assert sentencepiece.decode(second.ids, skip_special=False) == (
        "<s> [INST] the dog [/INST]the mother</s> [INST] other [/INST]"
    )


def test_a_template_that_puts_text_before_the_answer_is_rendered_anew(sentencepiece: Tokenizer) -> None:
    template = ChatTemplate(INSTRUCT, bos_token="<s>", eos_token="</s>")
    conversation = Conversation(sentencepiece, template)
    first = conversation.ask("the dog")
    conversation.answer(sentencepiece.encode("mother", add_special=False, parse_special=False), "mother")
    second = conversation.ask("other")
    assert not second.is_kept
    assert "changes the earlier turns" in second.reason
    assert list(second.ids) == render_ids(sentencepiece, template, conversation.messages)
    assert second.ids[: len(first.ids)] == first.ids


def test_an_answer_that_is_trimmed_keeps_its_ids(byte_level: Tokenizer) -> None:
    template = ChatTemplate(CHAT_ML.replace("m.content", "m.content|trim"))
    conversation = Conversation(byte_level, template)
    first = conversation.ask("the dog")
    answer = odd_ids(byte_level, " there \n")
    conversation.answer(answer, " there \n")
    second = conversation.ask("other")
    assert second.is_kept
    assert second.ids[: second.num_kept] == (*first.ids, *answer)


def test_a_template_that_drops_thoughts_says_so(byte_level: Tokenizer) -> None:
    conversation = Conversation(byte_level, ChatTemplate(FORGETS))
    conversation.ask("the dog")
    conversation.answer(odd_ids(byte_level, "hm</think>there"), "hm</think>there")
    turn = conversation.ask("other")
    assert not turn.is_kept
    assert turn.num_kept == 0
    assert "changes the answer" in turn.reason
    assert "hm" not in byte_level.decode(turn.ids)


def test_an_answer_without_thoughts_is_kept_by_such_a_template(byte_level: Tokenizer) -> None:
    conversation = Conversation(byte_level, ChatTemplate(FORGETS))
    conversation.ask("the dog")
    conversation.answer(odd_ids(byte_level, "there"), "there")
    assert conversation.ask("other").is_kept


def test_several_new_messages_at_once(byte_level: Tokenizer) -> None:
    template = ChatTemplate(CHAT_ML)
    first = render_ids(byte_level, template, [USER])
    said = [USER, {"role": "assistant", "content": "there"}]
    new = [{"role": "tool", "content": "42"}, AGAIN]
    turn = render_turn_ids(byte_level, template, [*first, *odd_ids(byte_level, "there")], said, new)
    assert turn.is_kept
    assert byte_level.decode(turn.ids, skip_special=False) == template.render(said + new, add_generation_prompt=True)


def test_a_question_that_the_template_refuses_leaves_the_conversation_as_it_was(byte_level: Tokenizer) -> None:
    conversation = Conversation(byte_level, ChatTemplate(STRICT))
    conversation.ask("the dog")
    conversation.answer([5], "x")
    before = list(conversation.messages)
    with pytest.raises(TemplateError, match="refuses"):
        conversation.ask("other")
    assert conversation.messages == before


def test_a_question_without_an_answer_can_be_taken_back(byte_level: Tokenizer) -> None:
    conversation = Conversation(byte_level, ChatTemplate(CHAT_ML))
    conversation.ask("the dog")
    conversation.answer(odd_ids(byte_level, "there"), "there")
    once = conversation.ask("other")
    conversation.take_back()
    assert conversation.ask("other") == once


def test_variables_reach_every_render(byte_level: Tokenizer) -> None:
    template = ChatTemplate("{{ mood }}" + CHAT_ML)
    conversation = Conversation(byte_level, template, mood="calm")
    conversation.ask("the dog")
    conversation.answer(odd_ids(byte_level, "there"), "there")
    turn = conversation.ask("other")
    assert turn.is_kept
    assert byte_level.decode(turn.ids).startswith("calm")
    assert byte_level.decode(turn.ids).count("calm") == 1
