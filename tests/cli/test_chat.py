"""`kvwise chat`: the second turn computes only what is new, and a turn that does not fit harms nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Kvwise

pytestmark = pytest.mark.usefixtures("bundled_model")


def turns(kvwise: Kvwise, lines: str, *options: str) -> list[dict[str, Any]]:
    result = kvwise("chat", "--json", "-n", "20", "--context", "512", *options, stdin=lines)
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


def test_a_turn_keeps_the_ids_of_earlier_turns_and_computes_at_most_a_block_of_them_again(kvwise: Kvwise) -> None:
    first, second, third = turns(kvwise, "Hello\nWhat is 2+2?\nAnd 3+3?\n")
    assert first["num_cached_tokens"] == 0
    for before, after in ((first, second), (second, third)):
        kept = before["prompt_ids"] + before["ids"]
        assert after["prompt_ids"][: len(kept)] == kept
        assert after["rendered_anew"] == ""
        # All but the last output token were computed; whole blocks of them are found again.
        assert after["num_cached_tokens"] >= len(kept) - 1 - 15
        assert after["num_computed_tokens"] == len(after["prompt_ids"]) - after["num_cached_tokens"]


def test_the_answers_are_those_of_a_conversation_without_a_cache(kvwise: Kvwise) -> None:
    from kvwise import LLM, SamplingParams

    conversation = turns(kvwise, "Hello\nWhat is 2+2?\n")
    with LLM(max_context=512, prefix_cache=False) as llm:
        alone = llm.generate([turn["prompt_ids"] for turn in conversation], SamplingParams(max_tokens=20))
    assert [list(output.ids) for output in alone] == [turn["ids"] for turn in conversation]


def test_a_turn_that_does_not_fit_is_refused_and_the_conversation_goes_on(kvwise: Kvwise) -> None:
    result = kvwise("chat", "--json", "-n", "20", "--context", "128", stdin=f"Hello\n{'word ' * 200}\nBye\n")
    first, refused, last = (json.loads(line) for line in result.out.splitlines())
    assert result.code == 3
    assert "room for 128" in refused["error"]
    assert "room for 128" in result.err
    assert last["prompt_ids"][: len(first["prompt_ids"])] == first["prompt_ids"]


def test_a_model_without_a_template_is_refused(kvwise: Kvwise, tiny: str) -> None:
    result = kvwise("chat", tiny, stdin="Hello\n")
    assert result.code == 2
    assert "no chat template" in result.err


def test_commands_leave_and_empty_lines_are_passed_over(kvwise: Kvwise, bundled_model: Path) -> None:
    assert turns(kvwise, "\n   \n/exit\nHello\n") == []


def test_piped_input_that_is_not_utf8_is_refused_where_it_is(kvwise: Kvwise, bundled_model: Path) -> None:
    result = kvwise("chat", str(bundled_model), "-n", "2", "--json", stdin=b"hello\nb\xff\n")
    assert result.code == 2
    assert "not UTF-8 text (byte 1)" in result.err
    assert len(result.out.splitlines()) == 1
