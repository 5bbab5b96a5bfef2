"""The seam under the engine: something that computes a step. Production runs a loaded program; tests bring a fake."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from kvwise.backends.protocol import LoadedProgram

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvwise.spec.batch import StepBatch


class Executor(Protocol):
    """Computes steps, one at a time, and owns the clock by which they are timed."""

    def execute(self, batch: StepBatch) -> NDArray[np.float32]:
        """Logits [R, vocab] of the batch's logits rows, valid until the next call."""
        ...

    def now_s(self) -> float:
        """Seconds on a clock that never goes back."""
        ...


class ProgramExecutor:
    """Runs a loaded program, timed by the machine's monotonic clock."""

    def __init__(self, loaded: LoadedProgram) -> None:
        self._loaded = loaded

    def execute(self, batch: StepBatch) -> NDArray[np.float32]:
        return self._loaded.run(batch)

    def now_s(self) -> float:
        return time.monotonic()
