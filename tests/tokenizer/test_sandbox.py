"""Templates that try to escape, to run for ever or to fill the memory: one TemplateError each, in any thread."""

# ruff: noqa: E501
from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvwise.errors import TemplateError
from kvwise.tokenizer import ChatTemplate

DOUBLE = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ USE }}"


def doubling(start: str, step: str, use: str = "ns.x") -> str:
    return DOUBLE.replace("START", start).replace("STEP", step).replace("USE", use)


LOOPS = {
    "a range": "{% for i in range(10**12) %}x{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "nested loops that write": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}"
    ),
    "a block that calls itself": "{% block a %}{{ self.a() }}{% endblock %}",
    "a loop that calls itself": "{% for i in [1]*9999 recursive %}{{ loop([1]*9999) }}{% endfor %}",
    "filters of filters": "{{ range(99999)|map('string')|map('list')|list|length }}",
    "filters in a loop": "{% for i in range(99999) %}{% set y = range(99999)|list %}{% endfor %}",
    "sorting in a loop": "{% set x = range(99999)|list %}{% for i in range(99999) %}{% set y = x|sort %}{% endfor %}",
    "searching in a loop": "{% set x = 'a'*1000000 %}{% for i in range(99999) %}{% if 'b' in x %}{% endif %}{% endfor %}",
    "comparing in a loop": (
        "{% set x = [1]*99999 %}{% set y = [1]*99999 %}{% for i in range(99999) %}{% if x != y %}{% endif %}{% endfor %}"
    ),
    "copying in a loop": "{% set x = [1]*90000 %}{% for i in range(99999) %}{% set y = x[1:] %}{% endfor %}",
    "a long path": "{{ range(99999)|map(attribute='a.'*99999)|list }}",
    "sorting by a long path": "{{ range(99999)|sort(attribute='a.'*99999) }}",
    "sorting one list many times over": "{% set x = range(99999)|list %}{{ ([0]*99999)|map('default', x, true)|sort }}",
    "the largest of many lists": "{% set x = range(99999)|list %}{{ ([0]*99999)|map('default', x, true)|max|length }}",
    "distinct lists": "{% set x = range(99999)|list %}{{ ([0]*99999)|map('default', x, true)|unique|list }}",
    "calling in a loop": "{% for i in range(99999) %}{{ ''.join(['a']) ~ messages|tojson }}{% endfor %}",
}
MEMORY = {
    "text times a number": "{{ 'a' * 10**9 }}",
    "a number times text": "{{ 10**9 * 'a' }}",
    "a list times a number": "{{ [0] * 10**9 }}",
    "a tuple times a number": "{{ (0,) * 10**9 }}",
    "a power": "{{ 9 ** (9 ** 9) }}",
    "products": "{{ (2**4000) * (2**4000) }}",
    "center": "{{ 'a'|center(10**9) }}",
    "center as a method": "{{ 'a'.center(10**9) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ '1'.zfill(10**9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "a wide conversion": "{{ '%1000000000d' % 1 }}",
    "a wide conversion by name": "{{ '%(a)1000000000s' % {'a': 1} }}",
    "a width from the arguments": "{{ '%*d' % (10**9, 1) }}",
    "a precise conversion": "{{ '%.1000000000f' % 1 }}",
    "the format filter": "{{ '%1000000000d'|format(1) }}",
    "str.format": "{{ '{:>1000000000}'.format(1) }}",
    "str.format, indirectly": "{{ '{:{}}'.format(1, 10**9) }}",
    "str.format over and over": "{{ ('{0}' * 9999).format('a' * 99999) }}",
    "indent": "{{ 'x'|indent(10**9) }}",
    "round": "{{ 5|round(-(10**9)) }}",
    "round down": "{{ 5|round(10**9, 'floor') }}",
    "batch": "{{ [1]|batch(10**9, 0)|list }}",
    "tojson": "{{ [1]|tojson(indent=10**9) }}",
    "tojson with long marks": "{{ range(9999)|list|tojson(separators=('x'*9999, ':')) }}",
    "replace": "{{ ('a'*99999).replace('a', 'b'*99999) }}",
    "replace nothing": "{{ ('a'*99999)|replace('', 'b'*99999) }}",
    "join": "{{ range(99999)|join('x'*99999) }}",
    "join as a method": "{{ ('x'*99999).join(range(99999)|map('string')) }}",
    "one text many times": "{{ ''.join(['a'*999999]*9999) }}",
    "many long texts": "{{ range(99999)|map('center', 999999)|list }}",
    "doubling by ~": doubling("'a'", "ns.x ~ ns.x"),
    "doubling by +": doubling("'a'", "ns.x + ns.x"),
    "doubling by %": doubling("'a'", "'%s%s' % (ns.x, ns.x)"),
    "doubling by format": doubling("'a'", "'{0}{0}'.format(ns.x)"),
    "doubling by replace": doubling("'aa'", "ns.x|replace('a', 'aa')"),
    "doubling lists": doubling("[1]", "ns.x + ns.x"),
    "nesting lists": doubling("[1]", "[ns.x, ns.x]"),
    "nesting tuples as keys": doubling("(1,)", "(ns.x, ns.x)", "{ns.x: 1}"),
    "nesting dictionaries": doubling("{}", "{'a': ns.x, 'b': ns.x}", "ns.x|tojson"),
    "nesting by dict()": doubling("1", "dict(a=ns.x, b=ns.x)"),
    "nesting by batch": doubling("[1]", "[ns.x, ns.x]|batch(1)|list"),
    "nesting namespaces": doubling("1", "namespace(a=ns.x, b=ns.x)"),
    "text of nested namespaces": doubling("1", "namespace(a=ns.x, b=ns.x)", "ns.x|upper"),
    "length of nested namespaces": doubling("1", "namespace(a=ns.x, b=ns.x)", "ns.x|wordcount"),
    "tests of nested namespaces": doubling("1", "namespace(a=ns.x, b=ns.x)", "ns.x is lower"),
    "lower case by the thousand": "{{ ([0]*99999)|map('default', 'A'*999999, true)|sort }}",
    "a namespace in itself": "{% set ns = namespace() %}{% set ns.x = ns %}{{ [ns] }}",
    "nesting arguments": "{% macro f() %}{{ f(varargs, varargs) }}{% endmacro %}{{ f(1, 1) }}",
    "nesting named arguments": "{% macro f() %}{{ f(a=kwargs, b=kwargs) }}{% endmacro %}{{ f(a=1) }}",
    "doubling blocks": (
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}"
    ),
    "doubling macros": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% else %}" + "x" * 9999 + "{% endif %}{% endmacro %}"
        "{% if f(40) %}{% endif %}"
    ),
    "endless output": "{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}",
    "bytes of a number": "{{ (1).to_bytes(10**9, 'big') }}",
    "a wide time": "{{ strftime_now('%01000000000d') }}",
    "sums of lists": "{{ [[1]]|sum(start=[]) }}",
}
ESCAPES = {
    "the class of a text": "{{ ''.__class__.__mro__ }}",
    "the class as an item": "{{ ''['__class__'] }}",
    "the class by a filter": "{{ ''|attr('__class__') }}",
    "the class by format": "{{ '{0.__class__}'.format('') }}",
    "an item by format": "{{ '{0[0]}'.format(['a']) }}",
    "the class of the messages": "{{ messages.__class__ }}",
    "the class by map": "{{ messages|map(attribute='__class__')|list }}",
    "a function's globals": "{{ raise_exception.__globals__ }}",
    "a function behind a name": "{{ raise_exception._function }}",
    "a call's globals": "{{ range.__call__.__globals__ }}",
    "a helper's initializer": "{{ cycler.__init__.__globals__ }}",
    "the template itself": "{{ self.__init__.__globals__ }}",
    "the template's context": "{{ self._TemplateReference__context }}",
    "a macro's function": "{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}",
    "a loop's iterator": "{% for x in [1] %}{{ loop._iterator }}{% endfor %}",
    "a bound method's function": "{{ cycler(1, 2).next.__func__ }}",
    "a generator's frame": "{{ (messages|map('string')).gi_frame.f_globals }}",
    "lipsum": "{{ lipsum.__globals__ }}",
    "a type's method": "{{ dict.fromkeys([1]) }}",
    "changing a list": "{{ messages.append(1) }}",
    "encode": "{{ 'a'.encode() }}",
    "another file": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}",
    "a parent": "{% extends 'base' %}",
}
SOURCES = {
    "too many tags": "{{ a }}" * 9999,
    "too long": "x" * 10**6,
    "deep brackets": "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}",
    "deep signs": "{{ " + "-" * 9999 + "1 }}",
    "deep conditions": "{% if a %}" * 1500 + "{% endif %}" * 1500,
    "deep loops": "{% for a in b %}" * 50 + "{% endfor %}" * 50,
    "a long sum": "{{ 1" + "+1" * 9999 + " }}",
    "a number of many digits": "{{ " + "9" * 9999 + " }}",
}
ALL = {**LOOPS, **MEMORY, **ESCAPES, **SOURCES}


def render(source: str) -> str:
    return ChatTemplate(source).render([{"role": "user", "content": "Hi"}], add_generation_prompt=True)


@pytest.mark.parametrize("source", ALL.values(), ids=ALL)
def test_an_attack_is_one_error(source: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(source)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", MEMORY.values(), ids=MEMORY)
def test_an_attack_takes_little_memory(source: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError):
            render(source)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 128 * 2**20


def test_limits_hold_in_other_threads() -> None:
    def outcome(source: str) -> str:
        try:
            return render(source)
        except TemplateError:
            return "refused"

    sources = [LOOPS["nested loops"], "{{ messages[0].content }}"] * 4
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(outcome, sources)) == ["refused", "Hi"] * 4


def test_a_render_that_failed_leaves_nothing_behind() -> None:
    template = ChatTemplate(
        "{% for i in range(messages[0].content|int) %}{% for j in range(99999) %}{% endfor %}{% endfor %}ok"
    )

    def times(n: int) -> str:
        return template.render([{"role": "user", "content": str(n)}], add_generation_prompt=False)

    assert times(1) == "ok"
    with pytest.raises(TemplateError):
        times(99)
    assert times(1) == "ok"
