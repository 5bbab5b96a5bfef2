"""The engine's loop over a fake executor: right tokens under batching, preemption, sharing, failure and refusal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fakes import KV, VOCAB, SumExecutor, expected_ids
from kvwise.engine.engine import Engine
from kvwise.errors import BackendError, DoesNotFit, UsageError
from kvwise.kvcache import check_integrity
from kvwise.spec.batch import StepBatch
from kvwise.spec.request import Request, SamplingParams
from kvwise.spec.shape import StepLimits


def make_engine(
    num_blocks: int = 32,
    *,
    max_tokens: int = 24,
    max_requests: int = 4,
    stop_ids: frozenset[int] = frozenset(),
    executor: SumExecutor | None = None,
) -> Engine:
    return Engine(
        executor or SumExecutor(num_blocks),
        KV,
        num_blocks,
        StepLimits(max_tokens, max(4, max_requests), max_requests, 256),
        vocab=VOCAB,
        stop_ids=stop_ids,
        check_every_step=True,
    )


def request(name: str, prompt: list[int], max_tokens: int = 8, **kwargs: object) -> Request:
    return Request(name, tuple(prompt), SamplingParams(max_tokens=max_tokens, **kwargs))  # type: ignore[arg-type]


PROMPTS = st.lists(
    st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 30)), min_size=1, max_size=8
)


@settings(max_examples=120)
@given(PROMPTS, st.integers(6, 12), st.integers(4, 40))
def test_every_request_gets_the_tokens_it_would_get_alone(
    jobs: list[tuple[list[int], int]], num_blocks: int, max_tokens: int
) -> None:
    engine = make_engine(num_blocks, max_tokens=max_tokens)
    for i, (prompt, count) in enumerate(jobs):
        engine.add_request(request(f"r{i}", prompt, count))
    for _ in engine.run():
        pass
    for i, (prompt, count) in enumerate(jobs):
        assert list(engine.outputs[f"r{i}"].ids) == expected_ids(prompt, count)
    assert engine.cache.stats().used_blocks == 0


def test_a_worked_example_of_sixteen_prompt_tokens_and_a_stop_token() -> None:
    prompt = [1] * 16
    outputs = expected_ids(prompt, 4)
    engine = make_engine(stop_ids=frozenset({outputs[3]}))
    engine.add_request(request("r", prompt, 30))
    parts = [report.parts[0] for report in engine.run()]
    assert [(p.is_prefill, p.first_position, p.num_tokens) for p in parts] == [
        (True, 0, 16),
        (False, 16, 1),
        (False, 17, 1),
        (False, 18, 1),
    ]
    assert [p.cached_tokens for p in parts] == [16, 17, 18, 19]
    assert [p.token_id for p in parts] == outputs
    assert engine.outputs["r"].finish_reason == "stop"
    assert len(engine.outputs["r"].itl_s) == 3


def test_a_second_request_with_the_same_beginning_computes_only_what_is_new() -> None:
    engine = make_engine()
    prompt = [i % 7 for i in range(40)]
    for name in ("first", "second"):
        engine.add_request(request(name, prompt, 2))
        list(engine.run())
    assert engine.outputs["first"].num_cached_tokens == 0
    assert engine.outputs["second"].num_cached_tokens == 32
    assert engine.outputs["first"].ids == engine.outputs["second"].ids


def test_without_keeping_kv_every_token_computes_all_positions_and_the_tokens_are_the_same() -> None:
    engine = Engine(SumExecutor(16), KV, 16, StepLimits(64, 4, 1, 256), vocab=VOCAB, keep_kv=False)
    engine.add_request(request("r", [1] * 20, 5))
    parts = [report.parts[0] for report in engine.run()]
    assert [(p.first_position, p.num_tokens) for p in parts] == [(0, n) for n in range(20, 25)]
    assert list(engine.outputs["r"].ids) == expected_ids([1] * 20, 5)


def test_without_a_prefix_cache_nothing_is_shared() -> None:
    engine = Engine(SumExecutor(16), KV, 16, StepLimits(64, 4, 1, 256), vocab=VOCAB, prefix_cache=False)
    for name in ("a", "b"):
        engine.add_request(request(name, [1] * 40, 2))
        list(engine.run())
    assert engine.outputs["b"].num_cached_tokens == 0


def test_a_failed_step_leaves_the_cache_as_it_was_and_can_be_tried_again() -> None:
    executor = SumExecutor(16, fail_at=2)
    engine = make_engine(16, executor=executor)
    engine.add_request(request("r", [1, 2, 3], 6))
    engine.step()
    engine.step()
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.step()
    list(engine.run())
    assert list(engine.outputs["r"].ids) == expected_ids([1, 2, 3], 6)


def test_a_request_that_can_never_fit_is_refused_with_the_arithmetic_and_what_would_fit() -> None:
    engine = make_engine(2)
    with pytest.raises(DoesNotFit, match=r"30 \+ 8 - 1 = 37 tokens in the cache, which has room for 32") as refusal:
        engine.add_request(request("r", [1] * 30, 8))
    assert "max_tokens of at most 3" in str(refusal.value)
    assert "a prompt of at most 25 tokens" in str(refusal.value)
    engine.add_request(request("r", [1] * 25, 8))
    list(engine.run())
    assert len(engine.outputs["r"].ids) == 8


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "no tokens"), ([VOCAB], "token id 61"), ([-1], "token id -1")],
)
def test_a_malformed_prompt_is_refused_by_name(prompt: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_engine().add_request(request("r", prompt))


def test_an_id_in_use_is_refused() -> None:
    engine = make_engine()
    engine.add_request(request("r", [1]))
    with pytest.raises(UsageError, match="in use"):
        engine.add_request(request("r", [2]))


class Taker:
    """Keeps what each prompt position's logits choose, and checks that they come in order."""

    def __init__(self) -> None:
        self.chosen: list[int] = []
        self.most_rows = 0

    def __call__(self, first_position: int, rows: np.ndarray) -> None:
        assert first_position == len(self.chosen)
        self.chosen += [int(row.argmax()) for row in rows]
        self.most_rows = max(self.most_rows, len(rows))


def test_a_preempted_request_hands_each_prompt_position_on_once() -> None:
    engine = make_engine(6, max_tokens=24)
    engine.add_request(request("old", [1] * 30, 40))
    taker = Taker()
    engine.add_request(Request("young", (2,) * 20, SamplingParams(max_tokens=30), salt="y"), taker)
    preempted = [name for report in engine.run() for name in report.preempted]
    assert "young" in preempted
    assert taker.chosen == [2 * (i + 1) % VOCAB for i in range(20)]


def test_rows_of_a_padded_head_are_never_drawn() -> None:
    engine = Engine(SumExecutor(16), KV, 16, StepLimits(64, 4, 1, 256), vocab=20)
    engine.add_request(request("r", [15, 15], 1))  # the fake's answer would be 30
    list(engine.run())
    assert engine.outputs["r"].ids[0] < 20


def test_abort_gives_the_blocks_back_at_once() -> None:
    engine = make_engine()
    engine.add_request(request("r", [1] * 20, 8))
    engine.step()
    output = engine.abort("r")
    assert output.finish_reason == "abort"
    assert engine.cache.stats().used_blocks == 0
    assert not engine.has_work


def test_stop_ids_do_not_stop_before_min_tokens_nor_with_ignore_eos() -> None:
    ids = expected_ids([1, 2, 3], 5)
    engine = make_engine(stop_ids=frozenset(ids[:1]))
    engine.add_request(request("eager", [1, 2, 3], 5))
    engine.add_request(request("deaf", [1, 2, 3], 5, ignore_eos=True))
    engine.add_request(request("late", [1, 2, 3], 5, min_tokens=3))
    list(engine.run())
    assert engine.outputs["eager"].ids == tuple(ids[:1])
    assert engine.outputs["deaf"].ids == tuple(ids)
    assert ids[0] not in engine.outputs["late"].ids[:3]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=70), st.integers(1, 9))
def test_prompt_logits_are_complete_and_in_order_however_the_prompt_is_cut(prompt: list[int], rows: int) -> None:
    engine = Engine(SumExecutor(16), KV, 16, StepLimits(16, rows, 1, 256), vocab=VOCAB)
    taker = Taker()
    engine.add_request(Request("r", tuple(prompt), SamplingParams(max_tokens=2)), taker)
    list(engine.run())
    assert taker.chosen == [sum(prompt[: i + 1]) % VOCAB for i in range(len(prompt))]
    assert taker.most_rows <= rows


def test_a_step_whose_logits_are_not_numbers_leaves_the_cache_as_it_was_for_every_request() -> None:
    executor = SumExecutor(16)
    engine = make_engine(16, executor=executor)
    for name in ("a", "b", "c"):
        engine.add_request(request(name, [1, 2, ord(name) % 5], 6))
    engine.step()
    healthy = executor.execute

    def broken(batch: StepBatch) -> np.ndarray:
        logits = healthy(batch)
        logits[1] = np.nan
        return logits

    executor.execute = broken  # type: ignore[method-assign]
    with pytest.raises(BackendError, match="not finite"):
        engine.step()
    check_integrity(engine.cache)
    executor.execute = healthy  # type: ignore[method-assign]
    list(engine.run())
    for name in ("a", "b", "c"):
        assert list(engine.outputs[name].ids) == expected_ids([1, 2, ord(name) % 5], 6)
    assert engine.cache.stats().used_blocks == 0


@pytest.mark.parametrize("call", range(6))
def test_an_interrupt_while_a_step_is_committed_loses_no_token_and_no_block(call: int) -> None:
    calls = 0

    class Interrupting:
        """Text for tokens; one call is interrupted, as by Ctrl-C."""

        def push(self, token_id: int) -> str:
            nonlocal calls
            calls += 1
            if calls == call + 1:
                raise KeyboardInterrupt
            return f"{token_id} "

        def flush(self) -> str:
            return ""

    engine = Engine(
        SumExecutor(16), KV, 16, StepLimits(24, 4, 4, 256), vocab=VOCAB, make_decoder=lambda _: Interrupting()
    )
    for name in ("a", "b"):
        engine.add_request(request(name, [1, ord(name) % 5], 3))
    with pytest.raises(KeyboardInterrupt):
        list(engine.run())
    check_integrity(engine.cache)
    for name in ("a", "b"):
        if name not in engine.outputs:
            engine.abort(name)
    assert engine.cache.stats().used_blocks == 0
    assert not engine.has_work
    engine.add_request(request("a", [1, 2], 3))
    list(engine.run())
    assert list(engine.outputs["a"].ids) == expected_ids([1, 2], 3)


def test_a_request_that_bans_every_token_is_refused() -> None:
    engine = make_engine()
    every = frozenset(range(VOCAB))
    with pytest.raises(UsageError, match="all 61 tokens stop"):
        engine.add_request(request("r", [1], 4, min_tokens=2, stop_ids=every))
    engine.add_request(request("r", [1], 4, stop_ids=every))
    list(engine.run())
    assert engine.outputs["r"].finish_reason == "stop"


def test_an_id_is_free_again_once_its_request_ended() -> None:
    engine = make_engine()
    for _ in range(2):
        engine.add_request(request("r", [1], 2))
        list(engine.run())
    engine.add_request(request("r", [1], 2))
    engine.abort("r")
    engine.add_request(request("r", [1], 2))
