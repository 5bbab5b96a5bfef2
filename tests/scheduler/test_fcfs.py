"""The policy's rules, one a test, on the real cache."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvwise.errors import UsageError
from kvwise.kvcache import KVCache
from kvwise.scheduler import POLICIES, RequestView, StepPlan, check_limits, plan_step
from kvwise.spec.shape import StepLimits


def limit(max_requests: int, max_tokens: int, max_logits_rows: int) -> StepLimits:
    return StepLimits(max_tokens, max_logits_rows, max_requests, max_context=1000)


AMPLE = limit(8, 64, 16)


class Scene:
    """Requests in a cache of blocks of 4 tokens. Prompts of different requests share nothing unless asked."""

    def __init__(self, num_blocks: int = 100) -> None:
        self.cache = KVCache(num_blocks, block_tokens=4)
        self.running: list[RequestView] = []
        self.waiting: list[RequestView] = []
        self.num_arrived = 0

    def new(self, num_prompt: int, num_outputs: int, tokens: Sequence[int] | None, wants_logits: bool) -> RequestView:
        order = self.num_arrived
        self.num_arrived += 1
        token_ids = tokens or [1000 * order + i for i in range(num_prompt)]
        token_ids = [*token_ids, *range(num_outputs)]
        return RequestView(f"r{order}", token_ids, num_prompt, 0, order, wants_logits)

    def run(self, num_prompt: int, num_computed: int, *, num_outputs: int = 0, wants_logits: bool = False) -> str:
        """A running request. With one output and the whole prompt computed it decodes."""
        view = self.new(num_prompt, num_outputs, None, wants_logits)
        self.cache.admit(view.request_id, self.cache.empty_prefix())
        if num_computed:
            self.cache.commit(self.cache.reserve(view.request_id, view.token_ids[:num_computed]))
        self.running.append(view._replace(num_computed_tokens=num_computed))
        return view.request_id

    def decode(self, num_computed: int) -> str:
        return self.run(num_computed, num_computed, num_outputs=1)

    def wait(self, num_prompt: int, *, tokens: Sequence[int] | None = None, wants_logits: bool = False) -> str:
        view = self.new(num_prompt, 0, tokens, wants_logits)
        self.waiting.append(view)
        return view.request_id

    def plan(self, limits: StepLimits = AMPLE) -> StepPlan:
        return plan_step(self.running, self.waiting, self.cache, limits)


def tokens_of(plan: StepPlan) -> dict[str, int]:
    return {entry.request_id: entry.num_scheduled_tokens for entry in plan.scheduled}


def rows_of(plan: StepPlan) -> dict[str, int]:
    return {entry.request_id: entry.num_logits_rows for entry in plan.scheduled}


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert Scene().plan() == StepPlan(())


def test_decodes_get_their_token_before_an_older_prefill_gets_the_rest() -> None:
    scene = Scene()
    prefill = scene.run(50, 3)
    decodes = [scene.decode(5) for _ in range(3)]
    plan = scene.plan(limit(4, 10, 4))
    assert tokens_of(plan) == dict.fromkeys(decodes, 1) | {prefill: 7}
    assert [entry.kind for entry in plan.scheduled] == ["decode"] * 3 + ["prefill"]


def test_a_full_set_of_decodes_and_one_prefill_always_fit() -> None:
    scene = Scene()
    prefill = scene.run(50, 3)
    decodes = [scene.decode(5) for _ in range(3)]
    assert tokens_of(scene.plan(limit(4, 4, 4))) == dict.fromkeys([*decodes, prefill], 1)


def test_a_long_prompt_is_cut_to_the_token_budget_and_only_its_last_token_needs_logits() -> None:
    scene = Scene()
    long = scene.wait(100)
    plan = scene.plan()
    assert (tokens_of(plan), rows_of(plan)) == ({long: 64}, {long: 0})
    scene = Scene()
    rest = scene.run(100, 64)
    plan = scene.plan()
    assert (tokens_of(plan), rows_of(plan)) == ({rest: 36}, {rest: 1})


def test_the_oldest_prefill_is_finished_first() -> None:
    scene = Scene()
    first, second, third = scene.run(60, 0), scene.run(60, 0), scene.run(60, 0)
    plan = scene.plan()
    assert tokens_of(plan) == {first: 60, second: 4}
    assert dict(plan.blocked) == {third: "max_tokens"}


def test_waiting_requests_are_admitted_in_order_up_to_max_requests() -> None:
    scene = Scene()
    running = scene.decode(5)
    first, second, third = scene.wait(3), scene.wait(3), scene.wait(3)
    plan = scene.plan(limit(3, 64, 16))
    assert tokens_of(plan) == {running: 1, first: 3, second: 3}
    assert dict(plan.blocked) == {third: "max_requests"}


def test_admission_stops_when_the_token_budget_is_spent() -> None:
    scene = Scene()
    first, second, third = scene.wait(40), scene.wait(40), scene.wait(1)
    plan = scene.plan()
    assert tokens_of(plan) == {first: 40, second: 24}
    assert dict(plan.blocked) == {third: "max_tokens"}


def test_nobody_overtakes_a_waiting_request_that_does_not_fit() -> None:
    scene = Scene(num_blocks=4)
    scene.decode(8)
    large, small = scene.wait(8), scene.wait(1)
    plan = scene.plan()
    assert dict(plan.blocked) == {large: "blocks"}
    assert small not in tokens_of(plan)


def test_a_cached_prefix_is_not_computed_again() -> None:
    scene = Scene()
    scene.run(12, 12)
    scene.cache.release("r0")
    scene.running.clear()
    waiting = scene.wait(12, tokens=range(12))
    (entry,) = scene.plan().scheduled
    assert entry.prefix == scene.cache.match_prefix(range(12))
    assert (entry.request_id, entry.num_scheduled_tokens) == (waiting, 4)


def test_a_request_that_wants_prompt_logits_computes_all_of_its_prompt_in_chunks_of_the_rows_there_are() -> None:
    scene = Scene()
    scene.run(12, 12)
    scene.cache.release("r0")
    scene.running.clear()
    waiting = scene.wait(12, tokens=range(12), wants_logits=True)
    plan = scene.plan(limit(8, 64, 10))
    assert (tokens_of(plan), rows_of(plan)) == ({waiting: 10}, {waiting: 10})


def test_logits_rows_of_all_requests_together_stay_within_the_limit() -> None:
    scene = Scene()
    decode = scene.decode(5)
    scored, plain = scene.wait(30, wants_logits=True), scene.wait(5)
    plan = scene.plan(limit(4, 64, 8))
    assert rows_of(plan) == {decode: 1, scored: 7, plain: 0}
    assert tokens_of(plan) == {decode: 1, scored: 7, plain: 4}, "without a row it stops short of its last token"


def test_a_request_without_a_row_for_its_only_token_waits() -> None:
    scene = Scene()
    scored, plain = scene.wait(30, wants_logits=True), scene.wait(1)
    plan = scene.plan(limit(4, 64, 8))
    assert tokens_of(plan) == {scored: 8}
    assert dict(plan.blocked) == {plain: "max_logits_rows"}


def test_the_latest_arrival_is_preempted_for_an_older_decode() -> None:
    scene = Scene(num_blocks=6)
    old, middle, latest = scene.decode(8), scene.decode(7), scene.decode(7)
    plan = scene.plan()
    assert plan.preempted == (latest,)
    assert tokens_of(plan) == {old: 1, middle: 1}


def test_preemption_takes_as_few_as_suffice() -> None:
    scene = Scene(num_blocks=4)
    old, latest = scene.decode(4), scene.decode(12)
    second = RequestView("r2", [7], 1, 0, 2)
    scene.waiting.append(second)
    plan = scene.plan()
    assert (plan.preempted, tokens_of(plan)) == ((latest,), {old: 1})
    assert dict(plan.blocked) == {"r2": "preemption"}


def test_a_younger_request_never_preempts_an_older_one_but_waits_with_what_it_has() -> None:
    scene = Scene(num_blocks=4)
    old, latest = scene.decode(7), scene.decode(8)
    plan = scene.plan()
    assert plan.preempted == ()
    assert tokens_of(plan) == {old: 1}
    assert dict(plan.blocked) == {latest: "blocks"}


def test_requests_that_share_all_their_blocks_are_preempted_together_or_not_at_all() -> None:
    scene = Scene(num_blocks=4)
    old, parent = scene.decode(8), scene.decode(8)
    scene.cache.fork(parent, "child")
    scene.running.append(scene.running[-1]._replace(request_id="child", arrival_order=5))
    plan = scene.plan()
    assert plan.preempted == ("child", parent)
    assert tokens_of(plan) == {old: 1}


def test_nobody_is_preempted_when_that_would_not_free_a_block() -> None:
    scene = Scene(num_blocks=2)
    parent = scene.decode(8)
    scene.cache.fork(parent, "child")
    scene.running.append(scene.running[-1]._replace(request_id="child", arrival_order=5))
    plan = scene.plan()
    assert (plan.preempted, plan.scheduled) == ((), ())
    assert dict(plan.blocked) == {parent: "blocks", "child": "blocks"}


def test_a_decode_that_was_planned_gives_its_tokens_back_when_an_older_prefill_needs_its_blocks() -> None:
    scene = Scene(num_blocks=4)
    prefill = scene.run(12, 8)
    decode = scene.decode(7)
    assert scene.cache.num_available_blocks == 0
    plan = scene.plan()
    assert (plan.preempted, tokens_of(plan)) == ((decode,), {prefill: 4})
    assert plan.blocked == ()


def test_a_prefill_chunk_shrinks_to_the_blocks_there_are() -> None:
    scene = Scene(num_blocks=5)
    old = scene.run(20, 6)
    latest = scene.decode(6)
    plan = scene.plan()
    assert (plan.preempted, tokens_of(plan)) == ((), {old: 6, latest: 1})


def test_admission_leaves_room_for_what_is_already_promised_to_running_prefills() -> None:
    scene = Scene(num_blocks=30)
    long = scene.run(100, 0)
    waiting = scene.wait(16)
    limits = limit(8, 40, 16)
    assert dict(scene.plan(limits).blocked) == {waiting: "max_tokens"}
    roomy = limit(8, 104, 16)
    # 25 blocks are the long prompt's, one is to spare for it, so four of thirty are left: just enough.
    assert tokens_of(scene.plan(roomy)) == {long: 100, waiting: 4}
    scene.waiting = []
    waiting = scene.wait(17)
    assert dict(scene.plan(roomy).blocked) == {waiting: "blocks"}


@pytest.mark.parametrize("values", [(0, 8, 8), (8, 7, 8), (8, 8, 7)])
def test_limits_under_which_decodes_would_starve_are_refused(values: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="at least one"):
        check_limits(limit(*values))
    check_limits(limit(8, 8, 8))


def test_the_policy_is_found_by_name() -> None:
    assert POLICIES["fcfs"] is plan_step
    with pytest.raises(UsageError, match="fcfs"):
        POLICIES["unknown"]
