"""What a chat template may spend: steps, characters and seconds. Knows nothing of templates.

The rule that makes it hold: every value that a template can lay hands on weighs no more than a fixed limit, every
operation takes time in proportion to the values it touches, and every operation and every turn of a loop is counted.
So no single operation is long, and a sum of many is noticed. Limits grow with the input, so that a long conversation
is no attack; a count is the same on every machine, and the clock is only the last resort.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Final

from kvwise.errors import TemplateError

_STEPS: Final = 300_000  # about a third of a second of template loops
_STEPS_PER_NODE: Final = 100
_VALUE_CHARS: Final = 2**20
_VALUE_NODES: Final = 100_000
_TOTAL_CHARS: Final = 2**24  # at most 64 MiB, at 4 bytes a character
_OUTPUT_CHARS: Final = 2**21
_CPU_SECONDS: Final = 0.4  # of this thread; a usual render takes 0.1 ms
# On a machine that others keep busy the wall clock counts too, once this much of the processor was really used.
_WALL_SECONDS: Final = 0.8
_CPU_SECONDS_AT_LEAST: Final = 0.1
_STEPS_PER_LOOK: Final = 64
_MAX_DEPTH: Final = 64  # of macros and recursive loops calling each other
_INTEGER_BITS: Final = 4096


class Budget:
    """The limits of one render. input_chars, input_nodes: the size of what is rendered."""

    def __init__(self, input_chars: int = 0, input_nodes: int = 0) -> None:
        self.steps_left = _STEPS + _STEPS_PER_NODE * input_nodes
        self.chars_left = _TOTAL_CHARS + 16 * input_chars
        self.output_left = _OUTPUT_CHARS + 8 * input_chars
        self.value_chars = _VALUE_CHARS + 4 * input_chars
        self.value_nodes = _VALUE_NODES + 4 * input_nodes
        self.depth = 0
        self._started = (time.thread_time(), time.monotonic())
        self._next_look = self.steps_left - _STEPS_PER_LOOK

    def take_steps(self, count: int = 1) -> None:
        """Count turns of a loop or elements walked. Raises TemplateError when there were too many, or too slow ones."""
        self.steps_left -= count
        if self.steps_left < self._next_look:
            self._next_look = self.steps_left - _STEPS_PER_LOOK
            self.look()

    def look(self) -> None:
        """Look at the clock, which an operation that may touch much also does at once."""
        if self.steps_left < 0:
            raise TemplateError("the chat template takes too many steps", expected=f"about {_STEPS} at most")
        used = time.thread_time() - self._started[0]
        waited = time.monotonic() - self._started[1]
        if used > _CPU_SECONDS or (used > _CPU_SECONDS_AT_LEAST and waited > _WALL_SECONDS):
            raise TemplateError("the chat template takes too long", expected=f"{_CPU_SECONDS} s at most")

    def take_chars(self, count: int) -> None:
        """Count the characters of a string before it is made. Raises TemplateError when there are too many."""
        self.take_steps(1 + (count >> 12))
        self.chars_left -= count
        if count > self.value_chars or self.chars_left < 0:
            raise TemplateError(
                "the chat template makes too much text", expected=f"at most {self.value_chars} characters"
            )

    def take_output(self, count: int) -> None:
        """Count characters that are rendered."""
        self.output_left -= count
        if self.output_left < 0:
            raise TemplateError("the chat template's output is too long")

    def check_length(self, count: int) -> None:
        """Raise TemplateError if a list of so many elements is too long."""
        if count > self.value_nodes:
            raise TemplateError(
                "the chat template makes too long a list", expected=f"at most {self.value_nodes} elements"
            )

    def check_bits(self, bits: int) -> None:
        """Raise TemplateError if an integer of so many bits is too large."""
        if bits > _INTEGER_BITS:
            raise TemplateError("the chat template makes too large a number", expected=f"{_INTEGER_BITS} bits at most")

    def enter(self) -> None:
        """A macro or loop calls into the template again; leave with `depth -= 1`."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise TemplateError("the chat template calls itself too deeply", expected=f"{_MAX_DEPTH} levels at most")

    def check_value(self, value: object, *, printable: bool = False) -> int:
        """Walk a value and return the characters that it has. Raises TemplateError if it is too large.

        printable: also raise for what no text should be made of (macros, namespaces, generators).
        """
        nodes = chars = 0
        pending = [value]
        while pending:
            item = pending.pop()
            nodes += 1
            if isinstance(item, str):
                chars += len(item) + 2
            elif isinstance(item, (list, tuple)):
                self.check_length(nodes + len(pending) + len(item))
                chars += 2 * len(item) + 2
                pending.extend(item)
            elif isinstance(item, dict):
                self.check_length(nodes + len(pending) + 2 * len(item))
                chars += 4 * len(item) + 2
                pending.extend(item)
                pending.extend(item.values())
            elif isinstance(item, int):
                chars += item.bit_length() // 3 + 1
            elif item is None or isinstance(item, float):
                chars += 24
            elif printable:
                raise TemplateError(
                    f"the chat template prints a {type(item).__name__}", expected="text or plain values"
                )
            if chars > self.value_chars or nodes > self.value_nodes:
                raise TemplateError("the chat template makes too large a value")
        self.take_steps(nodes // 8)
        return chars


_ACTIVE: ContextVar[Budget] = ContextVar("kvwise_template_budget")


def active_budget() -> Budget:
    """The budget of the render that is under way in this thread; a fresh one outside of any."""
    budget = _ACTIVE.get(None)
    return Budget() if budget is None else budget


class spending:
    """with spending(budget): all template code of this thread draws on it."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def __enter__(self) -> Budget:
        self._token = _ACTIVE.set(self._budget)
        return self._budget

    def __exit__(self, *_: object) -> None:
        _ACTIVE.reset(self._token)
