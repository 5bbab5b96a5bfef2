"""Changes that are offered do what they say, by the public planner; less of anything needs no more memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwise.errors import DoesNotFit, NotMeasured, UsageError
from kvwise.ledger.host import HostMemory, MemoryLimit
from kvwise.planner.counterfactuals import Counterfactual, counterfactuals, judge
from kvwise.planner.memory import plan, plan_shape
from kvwise.planner.placed import PlacedPlan, vary_placed
from kvwise.planner.plan import Plan
from kvwise.planner.policy import KVWISE
from kvwise.planner.quality import NOT_MEASURED, describe_quality, perplexity_change
from kvwise.planner.target import Target
from kvwise.units import GiB, MiB

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 4, "intermediate_size": 8192,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 65536,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
HOST = HostMemory(64 * GiB, (MemoryLimit("MemAvailable", 32 * GiB),))
Question = dict[str, Any]


def ask(question: Question) -> Plan:
    return plan(CONFIG, host=HOST, **question)


def with_change(question: Question, lever: str, value: Any) -> Question:
    """What to ask the planner for, so that one thing is different."""
    if lever in ("devices", "device"):
        return {**question, "on": value}
    if lever in ("step_tokens", "block_tokens"):
        return {**question, "policy": replace(question.get("policy", KVWISE), **{lever: value})}
    return {**question, lever: value}


def milder(question: Question, found: Counterfactual) -> Question | None:
    """A smaller change of the same lever; None where there is none that can be asked for."""
    lever, value = found.change.lever, found.change.value
    step = {"context": 16, "batch": 1, "step_tokens": 1, "block_tokens": value}.get(lever)
    return None if step is None else with_change(question, lever, value + step)


DEVICE_QUESTIONS: list[Question] = [
    {"on": "t4", "context": 65536, "batch": 40},
    {"on": "t4", "context": 4100, "batch": 300, "policy": replace(KVWISE, block_tokens=4096)},
    {"on": "l4", "context": 1024, "batch": 1, "memory_limit": 1200 * MiB},
    {"on": "a10g:2", "context": 60000, "batch": 128},
]


@pytest.mark.parametrize("question", DEVICE_QUESTIONS)
def test_every_change_offered_for_devices_fits_and_a_milder_one_does_not(question: Question) -> None:
    plan_now = ask(question)
    assert not plan_now.fits
    found = counterfactuals(plan_now)
    assert found
    for one in found:
        assert ask(with_change(question, one.change.lever, one.change.value)).fits, one.change.words
        less = milder(question, one)
        assert less is None or not ask(less).fits, one.change.words


def test_devices_offer_every_lever_somewhere() -> None:
    levers = {one.change.lever for question in DEVICE_QUESTIONS for one in counterfactuals(ask(question))}
    assert levers >= {"context", "batch", "kv_dtype", "weights", "block_tokens", "devices", "device"}


@pytest.mark.parametrize("limit", [2 * GiB, 900 * MiB])
def test_every_change_offered_here_fits(limit: int) -> None:
    question = {"context": 16384, "batch": 16, "memory_limit": limit}
    found = counterfactuals(ask(question))
    assert found
    for one in found:
        if one.change.lever not in ("step_tokens", "weights"):  # plan() has the engine's step, and all weights alike
            assert ask(with_change(question, one.change.lever, one.change.value)).fits, one.change.words


def test_every_change_offered_for_a_shape_fits() -> None:
    question: Question = {
        "params": 7e9, "layers": 32, "kv_heads": 8, "head_dim": 128, "context": 8192, "batch": 3, "host": HOST,
        "memory_limit": 16 * GiB,
    }  # fmt: skip
    found = counterfactuals(plan_shape(**question))
    assert {one.change.lever for one in found} == {"context", "batch", "kv_dtype", "weights"}
    for one in found:
        assert plan_shape(**{**question, one.change.lever: one.change.value}).fits


def test_a_plan_that_does_has_nothing_to_change() -> None:
    assert counterfactuals(ask({"on": "h100", "context": 100})) == ()
    judge(ask({"on": "h100", "context": 100})).check()


TARGETS = ["tpot=3ms", "ttft=60ms", "e2e=1s,tpot=20ms"]


@pytest.mark.parametrize("text", TARGETS)
def test_every_change_offered_for_a_target_keeps_it(text: str) -> None:
    question: Question = {"on": "a10g", "context": 4096, "batch": 64, "output_tokens": 128}
    target = Target.parse(text)
    latency = ask(question).latency
    assert latency is not None
    assert target.missed(latency)
    found = counterfactuals(ask(question), target)
    assert found
    for one in found:
        if one.change.lever == "step_tokens":  # the engine's step is a preset's
            continue
        changed = ask(with_change(question, one.change.lever, one.change.value))
        assert changed.fits
        assert changed.latency is not None
        assert not target.missed(changed.latency), one.change.words
        assert one.latency is not None
        assert one.latency.ttft_s == changed.latency.ttft_s
        assert one.latency.tpot_s == changed.latency.tpot_s


def test_a_refusal_offers_the_changes_in_words() -> None:
    planned = ask(DEVICE_QUESTIONS[0])
    with pytest.raises(DoesNotFit, match=r"1 x T4 needs .* any one of these makes it fit: a context of [\d,]+ tokens"):
        planned.check_fits()
    with pytest.raises(DoesNotFit, match="no single change makes it fit"):
        ask({**DEVICE_QUESTIONS[0], "memory_limit": MiB}).check_fits()


def test_a_missed_target_is_refused_unless_forced_and_the_json_says_so() -> None:
    planned, target = ask({"on": "a10g", "context": 4096, "batch": 64}), Target.parse("tpot=3ms")
    with pytest.raises(DoesNotFit, match=r"misses its target: tpot; expected tpot within 3 ms; any one of these keeps"):
        judge(planned, target).check()
    forced = judge(planned, target, forced=True)
    forced.check()
    out = json.loads(json.dumps(forced.to_json(), allow_nan=False))
    assert out["forced"] is True
    assert out["target"] == {"limits": {"tpot": 0.003}, "missed": ["tpot"]}
    assert out["fits"] is True
    assert out["changes"][0].keys() >= {"lever", "value", "words", "ttft_s", "tpot_s", "quality"}


def test_a_target_needs_a_prediction() -> None:
    with pytest.raises(NotMeasured, match="no latency is predicted"):
        judge(ask({"context": 100}), Target.parse("tpot=3ms"))


@pytest.mark.parametrize("text", ["", "queueing=1s", "tpot=fast"])
def test_a_target_that_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"each of ttft, tpot, e2e once at most"):
        Target.parse(text)


SIZES = st.integers(1, 60000)
PLACED: dict[str, PlacedPlan] = {
    place: placed for place in ("t4", "a10g:2", "h100:tp2,pp2") if (placed := ask({"on": place}).placed) is not None
}


@pytest.mark.parametrize("place", sorted(PLACED))
@settings(max_examples=40, deadline=None)
@given(context=SIZES, batch=st.integers(1, 500), less=SIZES, fewer=st.integers(1, 500))
def test_what_fits_fits_with_a_shorter_context_and_with_fewer_requests(
    place: str, context: int, batch: int, less: int, fewer: int
) -> None:
    placed = PLACED[place]
    if vary_placed(placed, context=context, batch=batch).fits:
        assert vary_placed(placed, context=min(less, context), batch=batch).fits
        assert vary_placed(placed, context=context, batch=min(fewer, batch)).fits


@settings(max_examples=25, deadline=None)
@given(context=SIZES, batch=st.integers(1, 200), limit=st.integers(200 * MiB, 20 * GiB))
def test_what_fits_here_fits_with_less(context: int, batch: int, limit: int) -> None:
    question = {"context": context, "batch": batch, "memory_limit": limit}
    for one in counterfactuals(ask(question)):
        if one.change.lever in ("context", "batch"):
            assert ask({**question, one.change.lever: one.change.value}).fits


def test_quality_is_what_was_measured_and_nothing_else() -> None:
    assert perplexity_change("weights", "f32") == 0.0
    assert describe_quality("weights", "f16").startswith("perplexity +0.0")
    assert describe_quality("weights", "int4_g128") == NOT_MEASURED
