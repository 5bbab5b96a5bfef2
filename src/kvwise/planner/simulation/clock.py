"""Seconds of steps on the virtual clock, from whatever prices a step. Knows no requests and no scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kvwise.spec.shape import StepShape


class StepTimes(Protocol):
    """What the simulation asks of a device: how long steps take."""

    def step_seconds(self, shape: StepShape) -> float:
        """Seconds of one step."""
        ...

    def decode_seconds(self, contexts: Sequence[int], num_steps: int) -> Sequence[float]:
        """Seconds of each of `num_steps` decode steps in a row of the same requests.

        `contexts`: tokens of each in the cache after the first of these steps; one more after each further step.
        """
        ...


class PricedSteps:
    """Step times from a price of single steps, asked for every step."""

    def __init__(self, price: Callable[[StepShape], float]) -> None:
        self._price = price

    def step_seconds(self, shape: StepShape) -> float:
        return self._price(shape)

    def decode_seconds(self, contexts: Sequence[int], num_steps: int) -> Sequence[float]:
        batch = len(contexts)
        queries = (1,) * batch
        return [
            self._price(StepShape(queries, tuple(context + step for context in contexts), batch))
            for step in range(num_steps)
        ]
