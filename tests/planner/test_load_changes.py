"""Changes that are offered for a load keep its SLO when the same load is simulated with them."""

from __future__ import annotations

from typing import Any

import pytest

from kvwise.planner.capacity import deploy
from kvwise.planner.load_changes import LoadChange, changes_that_keep
from kvwise.planner.simulation.asked import Asked
from kvwise.planner.simulation.slo import Slo

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 8, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 4096,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip


def found(slo: Slo, asked: Asked, **options: Any) -> list[LoadChange]:
    return list(changes_that_keep(deploy(CONFIG, **options), asked, slo))


@pytest.mark.parametrize(
    ("text", "options", "lever"),
    [
        ("ttft=300ms", {"on": "l4", "max_requests": 4}, "max_requests"),
        ("tpot=10ms", {"on": "l4"}, "weights"),
        ("tpot=9ms", {"on": "l4"}, "device"),
        ("itl=25ms", {"on": "l4", "step_tokens": 512}, "step_tokens"),
    ],
)
def test_every_change_offered_keeps_the_slo(text: str, options: dict[str, Any], lever: str) -> None:
    slo, asked = Slo.parse(text, 98), Asked.of(4.0, None, None, "600:40", 60, seed=2)
    deployment = deploy(CONFIG, **options)
    assert asked.given is not None
    assert not slo.judge(deployment.serve(asked.given)).kept
    changes = found(slo, asked, **options)
    assert lever in {one.change.lever for one in changes}
    for one in changes:
        assert one.verdict.kept
        if one.change.lever == "replicas":
            continue
        name = "on" if one.change.lever in ("devices", "device") else one.change.lever
        again = deploy(CONFIG, **{**options, name: one.change.value})
        assert slo.judge(again.serve(asked.given)) == one.verdict


def test_replicas_share_the_rate() -> None:
    slo, asked = Slo.parse("ttft=400ms", 90), Asked.of(12.0, None, None, "600:40", 60, seed=2)
    replicas = [one for one in found(slo, asked, on="l4") if one.change.lever == "replicas"]
    assert [one.change.value for one in replicas] == [2]
    assert slo.judge(deploy(CONFIG, on="l4").serve(asked.at(6.0))).kept


def test_a_closed_loop_has_no_rate_to_share() -> None:
    slo, asked = Slo.parse("tpot=7ms", 90), Asked.of(None, 8, None, "200:20", 30, seed=2)
    assert "replicas" not in {one.change.lever for one in found(slo, asked, on="l4")}


def test_what_nothing_keeps_has_no_change() -> None:
    assert found(Slo.parse("ttft=1us"), Asked.of(1.0, None, None, "20:2", 2, seed=0), on="b300") == []
