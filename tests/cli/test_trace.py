"""`kvwise trace` against the worked example that the field teaches with."""

from __future__ import annotations

from typing import Any

import pytest

from cli.conftest import Kvwise

PROMPT = "the quick brown "  # one token per byte in the tiny model's tokenizer; four different outputs follow


def trace(kvwise: Kvwise, tiny: str, *options: str, max_tokens: int = 4) -> dict[str, Any]:
    result = kvwise("trace", tiny, PROMPT, "--raw", "--backend", "reference", "-n", str(max_tokens), "--json", *options)
    assert result.code == 0, result.err
    answer: dict[str, Any] = result.json
    return answer


def test_prefill_computes_the_prompt_and_each_decode_one_position(kvwise: Kvwise, tiny: str) -> None:
    answer = trace(kvwise, tiny)
    assert len(answer["prompt_ids"]) == 16
    steps = answer["steps"]
    assert [s["kind"] for s in steps] == ["prefill", "decode 1", "decode 2", "decode 3"]
    assert [(s["first_position"], s["last_position"]) for s in steps] == [(0, 15), (16, 16), (17, 17), (18, 18)]
    assert [s["cached_tokens"] for s in steps] == [16, 17, 18, 19]
    assert [s["token_id"] for s in steps] == answer["ids"]
    assert [s["uncached_positions"] for s in steps] == [16, 17, 18, 19]


def test_the_stop_token_is_the_last_output_and_never_in_the_cache(
    kvwise: Kvwise, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvwise.tokenizer import Tokenizer

    fourth = trace(kvwise, tiny)["ids"][3]
    monkeypatch.setattr(Tokenizer, "stop_ids", property(lambda self: frozenset({fourth})))
    answer = trace(kvwise, tiny, max_tokens=30)
    assert answer["finish_reason"] == "stop"
    assert answer["ids"][-1] == fourth
    assert len(answer["ids"]) == 4
    assert [s["cached_tokens"] for s in answer["steps"]] == [16, 17, 18, 19]
    assert answer["steps"][-1]["last_position"] == 18


def test_without_a_cache_the_tokens_are_the_same_and_all_positions_are_computed_each_time(
    kvwise: Kvwise, tiny: str
) -> None:
    cached, anew = trace(kvwise, tiny), trace(kvwise, tiny, "--no-cache")
    assert anew["ids"] == cached["ids"]
    assert [(s["first_position"], s["last_position"]) for s in anew["steps"]] == [(0, 15), (0, 16), (0, 17), (0, 18)]
    assert [s["flops"] for s in anew["steps"]] == [s["uncached_flops"] for s in cached["steps"]]


def test_the_table_names_positions_tokens_and_what_was_saved(kvwise: Kvwise, tiny: str) -> None:
    out = kvwise("trace", tiny, PROMPT, "--raw", "--backend", "reference", "-n", "4").out
    assert "prefill" in out
    assert "0-15" in out
    assert "times the work" in out
