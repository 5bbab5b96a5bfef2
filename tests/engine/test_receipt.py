"""The receipt of real runs, each in a process of its own: measured pages, and a residual that may not grow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvwise.ledger.rows import largest_residual_bytes

PROGRAM = """
import json, sys
from kvwise.engine.llm import LLM
from kvwise.spec.request import SamplingParams
model, context, prompt_tokens, kv_dtype = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with LLM(model, max_context=context, max_requests=2, kv_dtype=kv_dtype) as llm:
    llm.generate([[i % 200 + 20 for i in range(prompt_tokens)]], SamplingParams(max_tokens=9, ignore_eos=True))
    print(json.dumps([row.to_json() for row in llm.ledger()]))
"""


def ledger(model: Path, context: int, prompt_tokens: int, kv_dtype: str = "f16") -> dict[str, Any]:
    command = [sys.executable, "-c", PROGRAM, str(model), str(context), str(prompt_tokens), kv_dtype]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return {row["name"]: row for row in json.loads(result.stdout)}


@pytest.mark.parametrize(("context", "prompt_tokens"), [(64, 20), (2048, 600), (8192, 20)])
def test_weights_are_held_as_planned_and_little_is_left_unexplained(
    bundled_model: Path, context: int, prompt_tokens: int
) -> None:
    rows = ledger(bundled_model, context, prompt_tokens)
    assert rows["weights"]["measured"] == pytest.approx(rows["weights"]["predicted"], rel=0.01)
    total = sum(row["measured"] for row in rows.values())
    assert abs(rows["residual"]["measured"]) <= largest_residual_bytes(total)


def test_measured_kv_is_what_was_touched_not_what_was_planned(bundled_model: Path) -> None:
    rows = ledger(bundled_model, 8192, 20)
    held = 2 * 23_040 * 16  # 28 tokens lie in two blocks of 16
    assert rows["kv_pool"]["predicted"] == 2 * 8192 * 23_040
    assert held <= rows["kv_pool"]["measured"] < rows["kv_pool"]["predicted"] / 10


def test_measured_kv_follows_the_tokens_held(bundled_model: Path) -> None:
    short, long = (ledger(bundled_model, 2048, n)["kv_pool"]["measured"] for n in (100, 1500))
    growth = long - short
    assert growth == pytest.approx(1400 * 23_040, rel=0.15)


def test_kv_of_32_bits_takes_twice_the_bytes(bundled_model: Path) -> None:
    half, full = (ledger(bundled_model, 1024, 900, t)["kv_pool"] for t in ("f16", "f32"))
    assert full["predicted"] == 2 * half["predicted"]
    assert full["measured"] == pytest.approx(2 * half["measured"], rel=0.1)


def test_a_longer_prompt_touches_more_of_the_arena(bundled_model: Path) -> None:
    short, long = (ledger(bundled_model, 1024, n)["arena"] for n in (16, 512))
    assert short["predicted"] == long["predicted"]
    assert short["measured"] < long["measured"] <= long["predicted"]
