"""What one step did, request by request: the rows of `trace`, and what the ledger reconciles."""

from __future__ import annotations

from kvwise.frozen import dataclass
from kvwise.spec.shape import StepShape


@dataclass(frozen=True, slots=True)
class StepPart:
    """One request's share of a step: positions [first_position, first_position + num_tokens) were computed.

    `token_id` was chosen from the last of them, None while the prompt is not finished. `cached_tokens` are in the
    request's cache afterwards. `text` can be shown now. `finish_reason` is set by its last step.
    """

    request_id: str
    is_prefill: bool
    first_position: int
    num_tokens: int
    token_id: int | None
    cached_tokens: int
    text: str
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class StepReport:
    """`measured_s` is the executor's time for the step; `preempted` requests gave up their blocks before it."""

    index: int
    shape: StepShape
    parts: tuple[StepPart, ...]
    preempted: tuple[str, ...]
    measured_s: float
