"""kvwise's engine serving a simulated load: an executor that computes nothing stands in for the machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvwise.engine.engine import Engine
from kvwise.engine.queue import OpenStep
from kvwise.errors import DoesNotFit
from kvwise.planner.simulation.load import Load
from kvwise.planner.simulation.request import SimulatedRequest, first_own_ids
from kvwise.planner.simulation.simulate import EngineSetup
from kvwise.scheduler.step_plan import StepPlan
from kvwise.spec.batch import StepBatch
from kvwise.spec.kv import KV_TYPES, KVCacheSpec, LayerKV
from kvwise.spec.request import Request, SamplingParams
from planner.simulation.loads import price

_KV = KVCacheSpec((LayerKV(1, 4, 4, None),), KV_TYPES["f32"])
Decision = tuple[object, ...]


def decision(plan: StepPlan) -> Decision:
    """All of a plan but the hashes of its prefixes: they depend on salts, which say only who may share."""
    scheduled = [
        (*entry[:4], entry.prefix and (entry.prefix.num_cached_tokens, entry.prefix.blocks)) for entry in plan.scheduled
    ]
    return (scheduled, plan.preempted, plan.blocked)


class RealEngine:
    """Serves `load` to its end, as its own executor: a step takes its price, the next id is the simulation's."""

    def __init__(self, load: Load, setup: EngineSetup) -> None:
        self.requests = [
            SimulatedRequest(number, size, 0.0, own_id)
            for number, (size, own_id) in enumerate(zip(load.sizes, first_own_ids(load), strict=True))
        ]
        self.own_ids = list(first_own_ids(load))
        last = load.sizes[-1]
        self.vocab = self.own_ids[-1] + last.prompt_tokens + last.output_tokens
        self.engine = Engine(
            self, _KV, setup.num_blocks, setup.limits, vocab=self.vocab, prefix_cache=setup.prefix_cache
        )
        self.decisions: list[Decision] = []
        self.served: dict[int, tuple[float, float]] = {}  # first and last token's times
        self.refused: list[int] = []
        self.now, self.coming = 0.0, 0
        self._spy_on_steps()
        self._run(load)

    def _spy_on_steps(self) -> None:
        open_step = self.engine._queue.open_step

        def remember() -> OpenStep:
            self.step = open_step()
            self.decisions.append(decision(self.step.plan))
            return self.step

        self.engine._queue.open_step = remember  # type: ignore[method-assign]

    # As an executor

    def execute(self, batch: StepBatch) -> NDArray[np.float32]:
        self.now += price(batch.shape)
        logits = np.zeros((batch.num_logits_rows, self.vocab), np.float32)
        steps = zip(self.step.reservations, self.step.plan.scheduled, strict=True)
        for row, reservation in enumerate(r for r, entry in steps if entry.num_logits_rows):
            logits[row, self.own_ids[int(reservation.request_id)] + reservation.stop] = 1.0
        return logits

    def now_s(self) -> float:
        return self.now

    # As those who ask

    def _run(self, load: Load) -> None:
        arrivals = load.arrivals_s
        for _ in range(load.concurrency or 0):
            self._ask_one_that_fits()
        while True:
            while arrivals is not None and self.coming < len(arrivals) and arrivals[self.coming] <= self.now:
                self._ask()
            if self.engine.has_work:
                self._step(closed=arrivals is None)
            elif arrivals is None or self.coming == len(arrivals):
                return
            else:
                self.now = arrivals[self.coming]

    def _step(self, *, closed: bool) -> None:
        for part in self.engine.step().parts:
            number = int(part.request_id)
            if part.token_id is not None:
                self.served[number] = (self.served.get(number, (self.now, 0.0))[0], self.now)
            if closed and part.finish_reason is not None:
                self._ask_one_that_fits()

    def _ask_one_that_fits(self) -> None:
        while self.coming < len(self.requests) and not self._ask():
            pass

    def _ask(self) -> bool:
        """The next request is asked; whether it is served."""
        request = self.requests[self.coming]
        self.coming += 1
        sampling = SamplingParams(max_tokens=request.size.output_tokens)
        try:
            self.engine.add_request(Request(request.request_id, tuple(request.token_ids), sampling))
        except DoesNotFit:
            self.refused.append(request.arrival_order)
            return False
        return True
