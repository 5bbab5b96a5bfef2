"""What a policy is given and what it answers: plain data, the same for the engine and for a simulation.

Knows no engine, tensors or clocks. Anything with the attributes of `Schedulable` can be planned; `RequestView` is the
plainest such thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

from kvwise.errors import UsageError
from kvwise.kvcache import CachedPrefix
from kvwise.spec.shape import StepLimits

Kind = Literal["prefill", "decode"]
BlockedBy = Literal["max_requests", "max_tokens", "max_logits_rows", "blocks", "preemption", "prompts"]


class Schedulable(Protocol):
    """A request as a policy sees it. `token_ids` are all known ones, prompt and output; none is changed.

    `num_computed_tokens` is what the cache says for a running request; a waiting one counts 0. Decodes are those
    whose only token not yet computed is an output token.
    """

    @property
    def request_id(self) -> str: ...
    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def arrival_order(self) -> int: ...
    @property
    def wants_prompt_logits(self) -> bool: ...
    @property
    def salt(self) -> str: ...


class RequestView(NamedTuple):
    request_id: str
    token_ids: Sequence[int]
    num_prompt_tokens: int
    num_computed_tokens: int = 0
    arrival_order: int = 0
    wants_prompt_logits: bool = False
    salt: str = ""


class CacheView(Protocol):
    """The pure half of `kvwise.kvcache.KVCache`: all that a policy may ask of a cache."""

    @property
    def block_tokens(self) -> int: ...
    @property
    def num_available_blocks(self) -> int: ...
    def match_prefix(self, token_ids: Sequence[int], salt: str = "") -> CachedPrefix: ...
    def empty_prefix(self, salt: str = "") -> CachedPrefix: ...
    def count_idle(self, prefix: CachedPrefix) -> int: ...
    def count_freed_by(self, request_ids: Iterable[str]) -> int: ...


def check_limits(limits: StepLimits) -> None:
    """Raises UsageError for limits under which one decode of each request would not fit a step."""
    for name in ("max_tokens", "max_logits_rows"):
        value = getattr(limits, name)
        if not 1 <= limits.max_requests <= value:
            raise UsageError(
                f"{name} is {value} for {limits.max_requests} requests at once",
                expected="at least one token and one logits row for each request, and at least one request",
                action=f"raise {name} or lower max_requests",
            )


class ScheduledRequest(NamedTuple):
    """The next `num_scheduled_tokens` tokens of a request, the last `num_logits_rows` of which need logits.

    `prefix` is what to admit the request with, None for a request that is running already.
    """

    request_id: str
    kind: Kind
    num_scheduled_tokens: int
    num_logits_rows: int
    prefix: CachedPrefix | None = None


class BlockedRequest(NamedTuple):
    """A request that gets nothing in this step, and the limit that it met."""

    request_id: str
    by: BlockedBy


class StepPlan(NamedTuple):
    """One step, carried out with no other change of the cache in this order: release `preempted`, admit, reserve.

    `preempted` (latest arrival first) lose their blocks, count 0 computed tokens and wait again, in arrival order.
    `blocked` are running requests that get nothing and the first waiting one that is not admitted. Nothing scheduled
    though something runs or waits means that blocks are held by others than the running requests.
    """

    scheduled: tuple[ScheduledRequest, ...]
    preempted: tuple[str, ...] = ()
    blocked: tuple[BlockedRequest, ...] = ()

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(entry.num_scheduled_tokens for entry in self.scheduled)

    @property
    def num_logits_rows(self) -> int:
        return sum(entry.num_logits_rows for entry in self.scheduled)
