"""The policy drives the real cache in a toy engine until all requests are answered, whatever the mix.

The toy model's next token depends on every token of the history, read from simulated memory through the block table:
an answer is right only if no slot was lost, shared wrongly or overwritten.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kvwise.kvcache import KVCache, check_integrity
from kvwise.scheduler import StepPlan, check_limits, plan_step
from kvwise.spec.shape import StepLimits
from kvwise.units import ceil_div

BLOCK_TOKENS = 4
VOCABULARY = 5


def next_token(history: list[int]) -> int:
    return sum((position + 1) * (token + 1) for position, token in enumerate(history)) % VOCABULARY


@dataclass
class ToyRequest:
    """`token_ids` grow with each answer; the rest is what the scheduler asks for."""

    request_id: str
    token_ids: list[int]
    arrival_order: int
    num_outputs: int
    arrival_step: int = 0
    wants_prompt_logits: bool = False
    salt: str = ""
    num_computed_tokens: int = 0
    num_prompt_tokens: int = field(init=False)
    first_token_step: int | None = None
    num_prompt_rows: int = 0
    num_preemptions: int = 0

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def is_finished(self) -> bool:
        return len(self.token_ids) == self.num_prompt_tokens + self.num_outputs

    @property
    def expected(self) -> list[int]:
        history = self.token_ids[: self.num_prompt_tokens]
        for _ in range(self.num_outputs):
            history.append(next_token(history))
        return history

    @property
    def num_blocks(self) -> int:
        """What its last step needs: the last output token never enters the cache."""
        return ceil_div(self.num_prompt_tokens + self.num_outputs - 1, BLOCK_TOKENS)


class ToyEngine:
    def __init__(self, requests: list[ToyRequest], cache: KVCache, limits: StepLimits, failing: set[int]) -> None:
        self.coming = sorted(requests, key=arrival)
        self.waiting: list[ToyRequest] = []
        self.running: list[ToyRequest] = []
        self.by_id = {request.request_id: request for request in requests}
        self.cache, self.limits, self.failing = cache, limits, failing
        self.memory: list[int | None] = [None] * (cache.num_blocks * BLOCK_TOKENS)
        self.admitted: list[int] = []
        self.num_steps = 0

    def run(self, max_steps: int) -> None:
        while self.coming or self.waiting or self.running:
            assert self.num_steps < max_steps, "no end in sight"
            self.step()

    def step(self) -> None:
        while self.coming and self.coming[0].arrival_step <= self.num_steps:
            self.waiting.append(self.coming.pop(0))
        plan = plan_step(self.running, self.waiting, self.cache, self.limits)
        assert plan == plan_step(self.running[::-1], self.waiting, self.cache, self.limits), "pure, any order"
        check_plan(plan, self.limits, self.running, self.waiting)
        oldest = (sorted(self.running, key=arrival) or self.waiting)[:1]
        assert all(any(entry.request_id == request.request_id for entry in plan.scheduled) for request in oldest)
        for request_id in plan.preempted:
            self.preempt(self.by_id[request_id])
        for entry in plan.scheduled:
            if entry.prefix is not None:
                self.admit(entry.request_id, entry.prefix)
        self.execute(plan)
        check_integrity(self.cache)
        self.num_steps += 1

    def preempt(self, request: ToyRequest) -> None:
        self.cache.release(request.request_id)
        self.running.remove(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        insort(self.waiting, request, key=arrival)

    def admit(self, request_id: str, prefix: object) -> None:
        request = self.waiting.pop(0)
        assert request.request_id == request_id, "first come, first served"
        self.cache.admit(request_id, prefix)  # type: ignore[arg-type]
        request.num_computed_tokens = self.cache.num_computed_tokens(request_id)
        self.running.append(request)
        if not request.num_preemptions:
            self.admitted.append(request.arrival_order)

    def execute(self, plan: StepPlan) -> None:
        reservations = []
        for entry in plan.scheduled:
            request = self.by_id[entry.request_id]
            start = request.num_computed_tokens
            tokens = request.token_ids[start : start + entry.num_scheduled_tokens]
            reservations.append(self.cache.reserve(request.request_id, tokens))
        for reservation in reservations:
            slots = self.cache.slot_mapping(reservation.request_id, reservation.start, reservation.stop)
            for slot, token in zip(slots, reservation.token_ids, strict=True):
                self.memory[slot] = token
        if self.num_steps in self.failing:
            for reservation in reservations:
                self.cache.abandon(reservation)
            return
        for entry, reservation in zip(plan.scheduled, reservations, strict=True):
            self.cache.commit(reservation)
            self.take_token(self.by_id[entry.request_id], entry.num_scheduled_tokens, entry.num_logits_rows)

    def take_token(self, request: ToyRequest, num_tokens: int, num_rows: int) -> None:
        request.num_prompt_rows += max(0, min(num_rows, request.num_prompt_tokens - request.num_computed_tokens))
        request.num_computed_tokens += num_tokens
        if request.num_computed_tokens < len(request.token_ids):
            return
        assert num_rows >= 1, "the last known token's row gives the next token"
        slots = self.cache.slot_mapping(request.request_id, 0, request.num_computed_tokens)
        request.token_ids.append(next_token([self.memory[slot] or 0 for slot in slots]))
        if request.first_token_step is None:
            request.first_token_step = self.num_steps
        if request.is_finished:
            self.running.remove(request)
            self.cache.release(request.request_id)


def arrival(request: ToyRequest) -> int:
    return request.arrival_order


def check_plan(plan: StepPlan, limits: StepLimits, running: list[ToyRequest], waiting: list[ToyRequest]) -> None:
    """What holds of every plan, whatever the requests and the cache."""
    running = sorted(running, key=arrival)
    scheduled = {entry.request_id: entry for entry in plan.scheduled}
    blocked = dict(plan.blocked)
    assert plan.num_scheduled_tokens <= limits.max_tokens
    assert plan.num_logits_rows <= limits.max_logits_rows
    assert all(entry.num_scheduled_tokens >= 1 for entry in plan.scheduled)
    accounted = scheduled.keys() | set(plan.preempted) | blocked.keys()
    assert len(accounted) == len(plan.scheduled) + len(plan.preempted) + len(plan.blocked), "each has one fate"
    num_admitted = sum(entry.prefix is not None for entry in plan.scheduled)
    assert len(running) - len(plan.preempted) + num_admitted <= limits.max_requests
    assert not (plan.preempted and num_admitted)

    assert all(request.request_id in accounted for request in running)
    if "max_tokens" in blocked.values():
        assert plan.num_scheduled_tokens == limits.max_tokens, "nobody waits for tokens that are left"
    latest_first = [request.request_id for request in reversed(running)]
    assert list(plan.preempted) == latest_first[: len(plan.preempted)], "the latest arrivals are preempted"
    for place, request in enumerate(running):
        is_decode = request.num_computed_tokens == len(request.token_ids) - 1 >= request.num_prompt_tokens
        if is_decode and request.request_id not in scheduled and request.request_id not in plan.preempted:
            assert blocked[request.request_id] == "blocks", "no prefill takes a decode's tokens or rows"
            for younger in running[place + 1 :]:
                entry = scheduled.get(younger.request_id)
                num_slots = -younger.num_computed_tokens % BLOCK_TOKENS
                assert entry is None or entry.num_scheduled_tokens <= num_slots, "a younger one takes no new block"


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[ToyRequest], StepLimits]:
    max_requests = draw(st.integers(1, 6))
    limits = StepLimits(
        max_requests=max_requests,
        max_tokens=max_requests + draw(st.integers(0, 20)),
        max_logits_rows=max_requests + draw(st.integers(0, 6)),
        max_context=50,
    )
    check_limits(limits)
    arrival_step, requests = 0, []
    for order in range(draw(st.integers(1, 9))):
        arrival_step += draw(st.sampled_from((0, 0, 0, 1, 5)))
        # Prompts of one letter share prefixes of any length; others share nothing.
        if draw(st.booleans()):
            prompt = [1] * draw(st.integers(1, 30))
        else:
            prompt = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30))
        requests.append(
            ToyRequest(
                f"r{order}",
                prompt,
                arrival_order=order,
                arrival_step=arrival_step,
                num_outputs=draw(st.integers(1, 20)),
                wants_prompt_logits=draw(st.sampled_from((False, False, False, True))),
                salt=draw(st.sampled_from(("", "", "adapter"))),
            )
        )
    return requests, limits


def max_steps(requests: list[ToyRequest], failing: set[int]) -> int:
    """One after the other, one token a step, with everything computed again after each preemption by an older one."""
    num_tokens = sum(len(request.expected) for request in requests)
    return max(request.arrival_step for request in requests) + num_tokens * len(requests) + len(failing) + 1


@dataclass
class Scene:
    """Requests in some state, all in one cache with few blocks left, as a run would seldom leave them."""

    cache: KVCache
    running: list[ToyRequest]
    waiting: list[ToyRequest]


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    running: list[ToyRequest] = []
    computed = draw(st.lists(st.integers(0, 12), min_size=1, max_size=7))
    num_held = sum(ceil_div(n, BLOCK_TOKENS) for n in computed)
    cache = KVCache(num_held + draw(st.integers(1 if num_held == 0 else 0, 3)), BLOCK_TOKENS)
    orders = draw(st.permutations(range(2 * len(computed))))
    for i, num_computed in enumerate(computed):
        num_left = draw(st.sampled_from((1, 1, 2, 5, 9)))
        tokens = [100 * i + j for j in range(num_computed + num_left)]
        request = ToyRequest(f"r{i}", tokens, orders[i], num_outputs=9, num_computed_tokens=num_computed)
        if num_left == 1 and num_computed:
            request.num_prompt_tokens -= 1
        cache.admit(request.request_id, cache.empty_prefix())
        if num_computed:
            cache.commit(cache.reserve(request.request_id, tokens[:num_computed]))
        running.append(request)
    for parent, order in zip(tuple(running), orders[len(computed) :], strict=True):
        if draw(st.booleans()) and cache.can_fork(parent.request_id):
            child = replace(parent, request_id=f"child of {parent.request_id}", arrival_order=order)
            child.num_prompt_tokens = parent.num_prompt_tokens
            cache.fork(parent.request_id, child.request_id)
            running.append(child)
    waiting = [ToyRequest(f"w{i}", [7] * (5 + i), 100 + i, num_outputs=1) for i in range(draw(st.integers(0, 2)))]
    return Scene(cache, running, waiting)


@settings(max_examples=500)
@given(scene=scenes(), more_requests=st.integers(0, 3), more_tokens=st.integers(0, 12), more_rows=st.integers(0, 3))
def test_every_plan_can_be_carried_out(scene: Scene, more_requests: int, more_tokens: int, more_rows: int) -> None:
    cache, num_seqs = scene.cache, len(scene.running) + more_requests
    limits = StepLimits(num_seqs + more_tokens, num_seqs + more_rows, num_seqs, max_context=100)
    plan = plan_step(scene.running, scene.waiting, cache, limits)
    check_plan(plan, limits, scene.running, scene.waiting)
    oldest = min(scene.running, key=arrival)
    scheduled = {entry.request_id for entry in plan.scheduled}
    assert oldest.request_id in scheduled or len(cache.block_table(oldest.request_id)) == cache.num_blocks
    for request_id in plan.preempted:
        cache.release(request_id)
    for entry in plan.scheduled:
        if entry.prefix is not None:
            cache.admit(entry.request_id, entry.prefix)
    by_id = {request.request_id: request for request in (*scene.running, *scene.waiting)}
    for entry in plan.scheduled:
        start = by_id[entry.request_id].num_computed_tokens
        cache.reserve(entry.request_id, by_id[entry.request_id].token_ids[start : start + entry.num_scheduled_tokens])
    check_integrity(cache)


@settings(max_examples=300)
@given(load=loads(), spare_blocks=st.integers(0, 4), failing=st.sets(st.integers(0, 60), max_size=8))
def test_all_are_answered_rightly_in_a_pool_barely_larger_than_the_largest_request(
    load: tuple[list[ToyRequest], StepLimits], spare_blocks: int, failing: set[int]
) -> None:
    requests, limits = load
    cache = KVCache(max(request.num_blocks for request in requests) + spare_blocks, BLOCK_TOKENS)
    engine = ToyEngine(requests, cache, limits, failing)
    engine.run(max_steps(requests, failing))
    for request in requests:
        assert request.token_ids == request.expected
        if request.wants_prompt_logits:
            assert request.num_prompt_rows >= request.num_prompt_tokens
    assert engine.admitted == sorted(engine.admitted)
    assert cache.stats().used_blocks == 0


@settings(max_examples=100)
@given(load=loads())
def test_with_blocks_to_spare_nobody_is_preempted_and_first_tokens_come_in_order_of_arrival(
    load: tuple[list[ToyRequest], StepLimits],
) -> None:
    requests, limits = load
    for request in requests:
        request.wants_prompt_logits = False
    cache = KVCache(sum(request.num_blocks for request in requests) + limits.max_requests, BLOCK_TOKENS)
    engine = ToyEngine(requests, cache, limits, set())
    engine.run(max_steps(requests, set()))
    assert all(request.token_ids == request.expected and not request.num_preemptions for request in requests)
    first = [request.first_token_step for request in requests]
    assert first == sorted(first, key=lambda step: step or 0)


def test_the_small_pool_does_preempt() -> None:
    """Without this the properties above could hold for want of trouble."""
    requests = [ToyRequest(f"r{i}", [i % VOCABULARY] * 8, arrival_order=i, num_outputs=30) for i in range(4)]
    engine = ToyEngine(requests, KVCache(16, BLOCK_TOKENS), StepLimits(32, 4, 4, max_context=50), set())
    engine.run(max_steps(requests, set()))
    assert sum(request.num_preemptions for request in requests) > 0
    assert requests[0].num_preemptions == 0
    assert all(request.token_ids == request.expected for request in requests)
