"""Bounding the sandbox changes no text: templates of the usual kinds render as they do in plain jinja2."""

# ruff: noqa: E501
from __future__ import annotations

import json
from functools import cache
from typing import Any, NoReturn

import jinja2.ext
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvwise.errors import TemplateError
from kvwise.tokenizer import ChatTemplate

HEADERS = """\
{{- bos_token }}
{%- if custom is defined %}
    {%- set tools = custom %}
{%- endif %}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|header|>system<|end|>\\n\\n" + system_message }}
{%- if tools is not none %}
    {{- "You may call:\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|header|>' + message['role'] + '<|end|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + "}" }}
        {{- "<|eot|>" }}
    {%- else %}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|header|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""
THINKING = """\
{%- macro section(name, body='') -%}
<{{ name }}>
{{ body if body else caller() }}
</{{ name }}>
{%- endmacro -%}
{%- set ns = namespace(last=messages|length - 1, searching=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string
        and not (message.content.startswith('<reply>') and message.content.endswith('</reply>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- if loop.index0 > ns.last or loop.last %}
            {{- section('think', thought) }}
        {%- endif %}
    {%- endif %}
    {%- if loop.first or loop.previtem.role != message.role %}
        {{- '\\n[' ~ message.role ~ ' ' ~ loop.index ~ '/' ~ loop.length ~ ']\\n' }}
    {%- endif %}
    {{- content }}
    {%- if not loop.last and loop.nextitem.role == 'tool' %}{% call section('wait') %}…{% endcall %}{% endif %}
{%- endfor %}
{% if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}
"""
ALTERNATING = """\
{% if messages[0]['role'] == 'system' %}
{% set loop_messages = messages[1:] %}{% set system = messages[0]['content'] + '\\n\\n' %}
{% else %}
{% set loop_messages = messages %}{% set system = '' %}
{% endif %}
{{ bos_token }}
{% for message in loop_messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate user/assistant, not ' ~ message.role) }}
    {% endif %}
    {% set role = 'model' if message.role == 'assistant' else message.role|lower %}
    {{ '<turn>' ~ role ~ '\\n' ~ (system if loop.first else '') ~ message.content|trim|replace('a', 'A') ~ '</turn>' }}
{% endfor %}
{%- if add_generation_prompt %}{{ '<turn>model\\n' -}}{% endif %}
"""
FUNCTIONS = """\
{%- macro type_of(spec) -%}
    {%- if spec.type is string -%}{{ spec.type }}
    {%- elif spec.type is iterable -%}{{ spec.type|join(' | ') }}
    {%- else -%}any{%- endif -%}
    {%- if spec['items'] is defined -%}<{{ type_of(spec['items']) }}>{%- endif -%}
{%- endmacro -%}
{%- for tool in tools or [] -%}
    {%- set f = tool.function if tool.function is defined else tool -%}
    // {{ f.description|default('no description')|indent(3) }}
type {{ f.name|upper }} = (
    {%- for name, spec in (f.parameters|default({})).get('properties', {}).items()|sort(attribute=0) -%}
        {{ ', ' if not loop.first }}{{ name }}{{ '' if name in f.parameters.get('required', []) else '?' }}: {{ type_of(spec) }}
    {%- endfor -%}
) => any;
{% endfor -%}
{%- for role, group in messages|groupby('role') -%}
{{ role }}={{ group|map(attribute='content')|map('string')|map('length')|sum }};
{%- endfor -%}
{{ messages|selectattr('role', 'in', ['user', 'tool'])|list|length }}{{ messages|rejectattr('content')|list|count }}
{{- messages|map(attribute='role')|unique|sort|join(',') }} {{ '%s-%03d' % (bos_token, messages|length) }}
{{- messages|last|dictsort|first|join(':') }}
"""
TEMPLATES = {"headers": HEADERS, "thinking": THINKING, "alternating": ALTERNATING, "functions": FUNCTIONS}

TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", " a ", "<think>\nhm\n</think>\n\nyes", "<reply>x</reply>", "é\n<b>&amp;\n", "a\tb"]),
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": TEXTS}),
    min_size=1,
    max_size=6,
)
TOOLS = st.sampled_from(
    [
        None,
        [],
        [{"name": "now"}],
        [
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "description": "The weather <now>,\nin a place",
                    "parameters": {
                        "type": "object",
                        "properties": {
                            "place": {"type": "string", "enum": ["東京", "Paris"]},
                            "days": {"type": ["integer", "null"]},
                            "units": {"type": "array", "items": {"type": "string"}},
                        },
                        "required": ["place"],
                    },
                },
            }
        ],
    ]
)


class Refused(Exception):
    pass


def refuse(message: str) -> NoReturn:
    raise Refused(message)


def to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


@cache
def plain_template(source: str) -> Template:
    """A template as transformers compiles it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source)


def plainly(source: str, **variables: Any) -> str | None:
    """What a template renders; None where it fails."""
    try:
        return plain_template(source).render(bos_token="<s>", eos_token="</s>", documents=None, **variables)
    except Exception:
        return None


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES)
@settings(max_examples=50)
@given(messages=MESSAGES, tools=TOOLS, add_generation_prompt=st.booleans(), thinking=st.booleans())
def test_the_text_is_that_of_plain_jinja(
    source: str, messages: list[dict[str, str]], tools: Any, add_generation_prompt: bool, thinking: bool
) -> None:
    options = {"tools": tools, "add_generation_prompt": add_generation_prompt, "enable_thinking": thinking}
    expected = plainly(source, messages=messages, **options)
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    if expected is None:
        with pytest.raises(TemplateError):
            template.render(messages, **options)
    else:
        assert template.render(messages, **options) == expected


def test_the_usual_conversation_renders_in_each() -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "?"},
    ]
    for source in TEMPLATES.values():
        assert plainly(source, messages=messages, tools=None, add_generation_prompt=True)
