"""Chat templates: transformers' conventions, plain inputs only, errors that say where."""

# ruff: noqa: E501
from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kvwise.errors import TemplateError
from kvwise.tokenizer import ChatTemplate, Tokenizer, load_chat_template
from tokenizer.vocabularies import byte_level_metadata

HELLO = [{"role": "user", "content": "Hello"}]


def render(source: str, messages: list[dict[str, Any]] = HELLO, **options: Any) -> str:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    return template.render(messages, add_generation_prompt=options.pop("add_generation_prompt", False), **options)


def test_the_bundled_models_template(bundled_metadata: dict[str, object], bundled: Tokenizer) -> None:
    template = load_chat_template(bundled_metadata, None, bundled)
    assert template is not None
    assert template.render(HELLO, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    system = [{"role": "system", "content": "Be brief."}, *HELLO]
    assert template.render(system, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    )


def test_blocks_take_their_line_with_them() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\nend\n"
    assert render(source) == "Hello\nend"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0]['role'] }}{{ eos_token }}", "<s>user</s>"),
        ("{{ messages[0].get('name', 'nobody') }}", "nobody"),
        ("{{ messages[0].missing }}|{{ missing }}", "|"),
        ("{{ missing is defined }} {{ messages[0].content is string }}", "False True"),
        ("{% for x in range(5) %}{% if x == 1 %}{% continue %}{% elif x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}", "02"),
        ("{% for m in messages + messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{% endfor %}", "0TrueFalse1FalseTrue"),
        ("{% for m in messages[1:] %}x{% else %}none{% endfor %}", "none"),
        ("{% for k, v in {'b': 1, 'a': 2}|dictsort %}{{ k }}{{ v }}{% endfor %}", "a2b1"),
        ("{% for k, v in {'b': 1}.items() %}{{ k }}={{ v }}{% endfor %}", "b=1"),
        ("{% set ns = namespace(found=false) %}{% for m in messages %}{% set ns.found = true %}{% endfor %}{{ ns.found }}", "True"),
        ("{% macro say(who, mark='!') %}Hi {{ who }}{{ mark }}{% endmacro %}{{ say('you') }}{{ say('me', mark='?') }}", "Hi you!Hi me?"),
        ("{% macro wrap() %}<{{ caller() }}>{% endmacro %}{% call wrap() %}x{% endcall %}", "<x>"),
        ("{% set text %}a{{ 1 + 1 }}{% endset %}{{ text|upper }}", "A2"),
        ("{% filter upper %}abc{% endfilter %}", "ABC"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("{{ '  a b '.strip().split(' ')|join('+') }} {{ 'x' ~ 1 ~ none }}", "a+b x1None"),
        ("{{ 'abc'|replace('b', 'X')|first }}{{ 'abc'[::-1] }}{{ 'a,b'.replace(',', ';') }}", "acbaa;b"),
        ("{{ messages|map(attribute='content')|list|length }}{{ messages|selectattr('role', 'equalto', 'user')|list|count }}", "11"),
        ("{{ '%s has %d' % ('it', 3) }} {{ '%05.1f'|format(2.25) }} {{ '{}-{n:>3}'.format('a', n=7) }}", "it has 3 002.2 a-  7"),
        ("{{ 'a\nb'|indent(2) }}", "a\n  b"),
        ("{{ 'a\nb'|indent(2, true) }}", "  a\n  b"),
        ("{{ '<&\"'|e }} {{ '<b>'|safe }}", "&lt;&amp;&#34; <b>"),
        ("{{ [3, 1, 2]|sort }} {{ [1, 2, 3]|sum }} {{ 2.5|round|int }} {{ [1, 1]|unique|list }}", "[1, 2, 3] 6 2 [1]"),
        ("{% for row in [1, 2, 3]|batch(2) %}{{ row }}{% endfor %}", "[1, 2][3]"),
        ("{{ 7 // 2 }}{{ 2 ** 10 }}{{ -3 % 5 }}{{ 7 / 2 }}", "3102423.5"),
        ("{% for x in [[1, [2]]] recursive %}{% for y in x %}{% if y is iterable %}{{ loop.depth }}{% endif %}{% endfor %}{% endfor %}", "1"),
        ("{% for n in [{'c': [{'c': []}]}] recursive %}({{ loop(n.c) }}){% endfor %}", "(())"),
        ("{{ 'user' in messages[0].values() }} {{ 'role' in messages[0] }}", "True True"),
        ("{% block a %}in{% endblock %}", "in"),
        ("{{ ['a', 'b'] }} {{ {'k': none} }} {{ (1,) }} {{ true }}", "['a', 'b'] {'k': None} (1,) True"),
    ],
)  # fmt: skip
def test_the_language(source: str, expected: str) -> None:
    assert render(source) == expected


def test_json_is_written_as_transformers_does() -> None:
    value = {"b": "é<>&'", "a": [1, 2.5, None, True]}
    assert render("{{ v|tojson }}", v=value) == json.dumps(value, ensure_ascii=False)
    assert render("{{ v|tojson(indent=2) }}", v=value) == json.dumps(value, ensure_ascii=False, indent=2)
    compact = render("{{ v|tojson(separators=(',', ':'), sort_keys=true) }}", v=value)
    assert compact == json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def test_the_time_can_be_written() -> None:
    text = render("{{ strftime_now('%Y-%m-%d 100%%') }}")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d 100%", text)
    assert text.startswith(str(datetime.now().year)) or datetime.now().month == 1


def test_tools_and_further_variables_reach_the_template() -> None:
    source = "{{ tools[0].name if tools else 'no tools' }} {{ enable_thinking }} {{ documents }}"
    assert render(source, enable_thinking=True) == "no tools True None"
    assert render(source, tools=[{"name": "f"}]) == "f  None"


def test_a_template_that_refuses_says_why() -> None:
    with pytest.raises(TemplateError, match=r"refuses these messages: Roles must alternate"):
        render("{{ raise_exception('Roles must ' ~ 'alternate') }}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{% if %}", "wrong on line 2"),
        ("{{ 'x'|nosuch }}", "nosuch"),
        ("{% nosuch %}", "nosuch"),
        ("{{ x is nosuch }}", "nosuch"),
        ("\n\n{{ missing.field }}", "fails on line 3: 'missing' is undefined"),
        ("{{ 1 / 0 }}", "fails on line 1: division by zero"),
        ("{{ 'a' + 1 }}", "fails on line 1"),
        ("{{ messages }}{{ messages[0]() }}", "can't be called"),
        ("{% include 'x' %}", "loads another"),
        ("{{ '\ud800' }}", "UTF-8"),
    ],
)
def test_a_template_that_fails_says_where(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        render(source)


@pytest.mark.parametrize("value", [object(), {1: 2}, {"a": {3}}, b"x", [lambda: 1]])
def test_only_plain_values_are_taken(value: Any) -> None:
    with pytest.raises(TemplateError, match="the messages hold a"):
        render("", [{"role": "user", "content": value}])


def test_messages_that_hold_themselves_are_refused() -> None:
    message: dict[str, Any] = {"role": "user"}
    message["content"] = [message]
    with pytest.raises(TemplateError, match="nested too deeply"):
        render("", [message])


def test_a_template_can_not_change_what_it_is_given() -> None:
    messages = [{"role": "user", "content": ["a"]}]
    for attack in (
        "messages.append(1)",
        "messages[0].update(a=1)",
        "messages[0].content.clear()",
        "messages[0].pop('role')",
    ):
        with pytest.raises(TemplateError):
            render("{{ " + attack + " }}", messages)
    assert messages == [{"role": "user", "content": ["a"]}]


def test_a_long_conversation_is_no_attack() -> None:
    messages = [{"role": "user", "content": "word " * 2000} for _ in range(1000)]
    source = "{% for m in messages %}{% if loop.last or m != messages[0] %}{{ m.role ~ ': ' ~ m.content|trim + '\n' }}{% endif %}{% endfor %}"
    assert len(render(source, messages)) == len("user: " + ("word " * 2000).strip() + "\n")
    source = "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}"
    assert len(render(source, messages)) == 1000 * (6 + 10000)


def test_a_template_whose_source_is_no_text_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(TemplateError, match="chat_template"):
        load_chat_template({"tokenizer.ggml.model": "gpt2", "tokenizer.chat_template": 5}, None, byte_level)


@pytest.mark.parametrize("source", ["", " \n"])
def test_an_empty_template_is_none(tmp_path: Path, byte_level: Tokenizer, source: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    assert load_chat_template({}, tmp_path, byte_level) is None
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": source}))
    assert load_chat_template({}, tmp_path, byte_level) is None
    named = [{"name": "default", "template": source}, {"name": "tool_use", "template": "tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = load_chat_template({}, tmp_path, byte_level)
    assert template is not None
    assert template.source == "tools"
    metadata = {**byte_level_metadata(), "tokenizer.chat_template": source}
    assert load_chat_template(metadata, None, byte_level) is None
