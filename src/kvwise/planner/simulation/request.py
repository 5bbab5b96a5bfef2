"""A request on the virtual clock: token ids that stand for its content, and what happened to it when.

    ids   0 ............ n·512 │ n·512 ...............
          what prompts share   │ what belongs to one request alone: the rest of its prompt, then its output

Token ids are made so that the prefix cache sees what it would see of real ones: equal content, equal ids. Knows no
scheduler and no clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, overload

from kvwise.errors import UsageError
from kvwise.planner.simulation.load import CONTENT_TOKENS, Load, RequestSize

_MAX_ID: Final = 2**32  # block hashes are of 32-bit ids


class SharedPrompt(Sequence[int]):
    """A prompt's ids as its content names them; `own_id` is the first of the ids for what nothing names.

    Made into a list of numbers only where it is looked at: thousands of long prompts may wait.
    """

    def __init__(self, size: RequestSize, own_id: int) -> None:
        self._size, self._own_id = size, own_id

    def __len__(self) -> int:
        return self._size.prompt_tokens

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> array[int]: ...
    def __getitem__(self, place: int | slice) -> int | array[int]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            ids = array("I", ())
            while start < stop:
                end = min(stop, start - start % CONTENT_TOKENS + CONTENT_TOKENS)
                first = self._id_at(start)
                ids.extend(range(first, first + end - start))
                start = end
            return ids[::step]
        return self._id_at(range(len(self))[place])

    def __iter__(self) -> Iterator[int]:
        return iter(self[:])

    def _id_at(self, position: int) -> int:
        block, offset = divmod(position, CONTENT_TOKENS)
        if block < len(self._size.content):
            return self._size.content[block] * CONTENT_TOKENS + offset
        return self._own_id + position


class SimulatedRequest:
    """Mutable; a policy plans it as scheduler.Schedulable. Times in seconds on the virtual clock, None until then.

    `token_ids` are the known ones: output ids are added as their time comes. num_cached_tokens: of its first admission.
    """

    __slots__ = (
        "_own_id", "arrival_order", "arrival_s", "first_token_s", "last_token_s", "num_cached_tokens",
        "num_computed_tokens", "num_left", "num_preemptions", "num_prompt_tokens", "request_id", "salt", "size",
        "start_s", "token_ids",
    )  # fmt: skip
    wants_prompt_logits: Final = False

    def __init__(self, number: int, size: RequestSize, arrival_s: float, own_id: int, salt: str = "") -> None:
        self.request_id, self.arrival_order, self.size = str(number), number, size
        self.arrival_s, self.salt = arrival_s, salt
        self.num_prompt_tokens, self.num_left = size.prompt_tokens, size.output_tokens
        self._own_id = own_id
        self.token_ids: Sequence[int] = (
            SharedPrompt(size, own_id) if size.content else range(own_id, own_id + size.prompt_tokens)
        )
        self.num_computed_tokens = self.num_preemptions = 0
        self.num_cached_tokens: int | None = None
        self.start_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s = arrival_s

    @property
    def num_output_tokens(self) -> int:
        return self.size.output_tokens - self.num_left

    def admit(self, num_cached_tokens: int) -> None:
        self.num_computed_tokens = num_cached_tokens
        if self.num_cached_tokens is None:
            self.num_cached_tokens = num_cached_tokens
        if isinstance(self.token_ids, SharedPrompt):
            self.token_ids = self.token_ids[:]

    def lose_blocks(self) -> None:
        self.num_computed_tokens = 0
        self.num_preemptions += 1

    def take_tokens(self, count: int, now_s: float) -> None:
        """Its next `count` output tokens came, the last of them now."""
        known = self.token_ids
        if isinstance(known, range):
            self.token_ids = range(known.start, known.stop + count)
        else:
            first = self._own_id + len(known)
            known.extend(range(first, first + count))  # type: ignore[attr-defined]
        self.num_left -= count
        self.last_token_s = now_s


def first_own_ids(load: Load) -> Iterator[int]:
    """For each request of `load` the first of the ids that are its own. Raises UsageError when 32 bits run out."""
    next_id = (1 + max((block for size in load.sizes for block in size.content), default=-1)) * CONTENT_TOKENS
    for size in load.sizes:
        yield next_id
        next_id += size.prompt_tokens + size.output_tokens
        if next_id > _MAX_ID:
            raise UsageError(
                "the load holds more than 2**32 different tokens", action="simulate fewer or shorter requests"
            )
