"""The Python API in careless hands: every wrong argument is one clear error, and the model works on afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvwise
from kvwise import LLM, InputError, KvwiseError, SamplingParams
from kvwise.engine.prompts import listed_prompts
from kvwise.errors import BackendError, UsageError
from kvwise.kvcache import check_integrity

TINY = Path(__file__).parents[1] / "goldens" / "hf" / "llama"
THREE = SamplingParams(max_tokens=3)
USER = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(TINY, backend="reference", max_requests=4, threads=1) as loaded:
        yield loaded


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("ab", ["ab"]),
        (["a", "b"], ["a", "b"]),
        (("a", [1, 2]), ["a", (1, 2)]),
        ([1, 2], [(1, 2)]),
        ((1, 2), [(1, 2)]),
        (range(3), [(0, 1, 2)]),
        ([[1], [2]], [(1,), (2,)]),
        (np.array([1, 2]), [(1, 2)]),
        (np.array([[1, 2], [3, 4]]), [(1, 2), (3, 4)]),
        ([np.int64(1), np.int32(2)], [(1, 2)]),
        ([np.array([1]), np.array([2])], [(1,), (2,)]),
        ((text for text in "ab"), ["a", "b"]),
        ([], []),
    ],
)
def test_prompts_in_any_form_become_a_list_of_texts_and_ids(given: Any, expected: list[Any]) -> None:
    listed = listed_prompts(given)
    assert listed == expected
    assert all(type(i) is int for prompt in listed if isinstance(prompt, tuple) for i in prompt)


@pytest.mark.parametrize(
    "prompts",
    [
        None, 5, 1.5, True, b"ab", bytearray(b"ab"), {"a": 1}, {"a"}, object(), np.float32(1), np.array(5),
        [None], [b"ab"], [1.5], [True], [1, "a"], [[1.5]], [[None]], [[[1]]], [["a"]], [{1}], np.array([1.5]),
        "", [""], [[]], "a\ud800", [-1], [10**9], [10**30], ["fine", [259]],
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_prompt_is_refused_before_anything_is_computed(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InputError):
        llm.generate(prompts, THREE)
    assert len(llm.generate("ab", THREE)) == 1


def test_a_text_is_scored_by_the_probability_of_each_token_given_those_before_it(llm: LLM) -> None:
    seen: dict[tuple[int, int], np.ndarray] = {}

    def take(index: int, first: int, rows: np.ndarray) -> None:
        seen.update({(index, first + i): row.astype(np.float64) for i, row in enumerate(rows)})

    texts = [(5, 3, 9, 3, 250), (7, 8)]
    scores = llm.score(texts, take_logits=take)
    assert sorted(seen) == [(i, at) for i, ids in enumerate(texts) for at in range(len(ids))]
    for i, (ids, score) in enumerate(zip(texts, scores, strict=True)):
        rows = np.array([seen[i, at] for at in range(len(ids) - 1)])
        expected = [np.log(np.exp(row)[token] / np.exp(row).sum()) for row, token in zip(rows, ids[1:], strict=True)]
        assert score.token_ids == ids
        assert score.logprobs == pytest.approx(expected, rel=1e-6)
        assert score.best_ids.tolist() == rows.argmax(axis=1).tolist()
        assert score.perplexity == pytest.approx(np.exp(-np.mean(expected)), rel=1e-6)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_score_does_not_depend_on_slices_on_company_or_on_what_is_cached(backend: str) -> None:
    ids = tuple(int(i) for i in np.random.default_rng(0).integers(0, 259, 70))
    with LLM(TINY, backend=backend, threads=1, max_requests=2, max_logits_rows=70) as whole:
        together = whole.score([ids, ids[:40], ids])
    with LLM(TINY, backend=backend, threads=1, max_requests=1) as one_row_at_a_time:
        one_row_at_a_time.generate(ids, THREE)
        (alone,) = one_row_at_a_time.score(ids)
    scores = [alone, *together]
    if backend == "native":
        assert [s.logprobs.tolist() for s in scores] == [alone.logprobs[: len(s.logprobs)].tolist() for s in scores]
    else:
        for score in scores:
            assert score.logprobs == pytest.approx(alone.logprobs[: len(score.logprobs)], rel=1e-4)


@pytest.mark.parametrize("texts", ["a", ["ab", "c"], [], ["ab", []], None, [[1, 10**9]]], ids=repr)
def test_what_can_not_be_scored_is_refused_and_no_texts_have_no_scores(llm: LLM, texts: Any) -> None:
    if texts == []:
        assert llm.score(texts) == []
        return
    with pytest.raises(InputError):
        llm.score(texts)


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([], THREE) == []


@pytest.mark.parametrize("sampling", ["x", {}, 5, [None], [THREE, THREE], [], ["x"], object], ids=repr)
def test_what_are_no_sampling_parameters_is_refused(llm: LLM, sampling: Any) -> None:
    with pytest.raises(UsageError, match="sampling"):
        llm.generate("ab", sampling)


@pytest.mark.parametrize(
    "change",
    [{name: value} for name in ("max_context", "max_requests", "pool_tokens", "threads")
     for value in (0, -1, 1.5, "2", True, [2], 10**30)]
    + [{"max_logits_rows": value} for value in (0, -1, 1.5, "2")]
    + [{"max_requests": None}, {"kv_dtype": None}, {"kv_dtype": ["f16"]}, {"backend": None}, {"backend": {}}],
    ids=str,
)  # fmt: skip
def test_what_is_no_setting_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(KvwiseError):
        LLM(TINY, **{"backend": "reference", **change})


@pytest.mark.parametrize(
    "messages", [None, "hi", b"hi", 5, [], {}, ["hi"], [None], [{}], [{"role": 5}], [{"content": "x"}]], ids=repr
)
def test_what_are_no_messages_is_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(UsageError, match="message"):
        llm.chat(messages)


@pytest.mark.parametrize("model", [None, 5, b"x", [], Path("no-such-file"), ""])
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(InputError):
        LLM(model)
    with pytest.raises(InputError):
        kvwise.plan(str(model) if isinstance(model, Path) else model)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_closed_model_says_so(backend: str) -> None:
    loaded = LLM(TINY, backend=backend, threads=1)
    loaded.close()
    loaded.close()
    uses = (lambda: loaded.generate("ab"), lambda: loaded.score("ab"), lambda: loaded.chat([USER]))
    for use in (*uses, loaded.ledger, loaded.__enter__):
        with pytest.raises(UsageError, match="is closed; load the model again"):
            use()


def test_a_second_call_meanwhile_is_refused_and_the_first_is_not_disturbed(llm: LLM) -> None:
    alone = llm.generate("ab", SamplingParams(max_tokens=40, ignore_eos=True))[0].ids
    refused: list[str] = []
    engine = llm._loaded.engine
    step = engine.step

    def step_and_intrude() -> Any:
        for use in (lambda: llm.generate("cd"), lambda: llm.chat([USER]), llm.ledger, llm.close):
            with pytest.raises(UsageError, match="in use by another call"):
                use()
        thread = threading.Thread(target=lambda: refused.append(_refusal(llm)))
        thread.start()
        thread.join()
        return step()

    engine.step = step_and_intrude  # type: ignore[method-assign]
    try:
        output = llm.generate("ab", SamplingParams(max_tokens=40, ignore_eos=True))[0]
    finally:
        del engine.step  # type: ignore[method-assign]
    assert output.ids == alone
    assert len(refused) > 1
    assert all("in use" in text for text in refused)


def _refusal(llm: LLM) -> str:
    try:
        llm.generate("ef")
    except UsageError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), MemoryError(), BackendError("gone"), RuntimeError("gone")])
@pytest.mark.parametrize("at_step", [0, 1, 4])
def test_after_a_failed_call_the_model_works_on_with_nothing_left_over(
    llm: LLM, raised: BaseException, at_step: int
) -> None:
    engine = llm._loaded.engine
    alone = llm.generate("ab", THREE)[0].ids
    execute, steps = engine._executor.execute, 0

    def fail_once(batch: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == at_step + 1:
            raise raised
        return execute(batch)

    engine._executor.execute = fail_once  # type: ignore[method-assign]
    try:
        with pytest.raises(type(raised)):
            llm.generate([[i + 3] * 40 for i in range(9)], SamplingParams(max_tokens=5, ignore_eos=True))
    finally:
        del engine._executor.execute  # type: ignore[attr-defined]
    check_integrity(engine.cache)
    assert not engine.has_work
    assert not engine.outputs
    assert engine.cache.stats().used_blocks == 0
    assert llm.generate("ab", THREE)[0].ids == alone
