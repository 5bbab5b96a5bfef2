"""The protocol between the harness and a peer's process: one JSON object per line, one answer per command.

    {"do": "load", "model": PATH, "threads": 2, "max_context": 2304, "max_batch": 1, "options": {...}}
    {"do": "begin", "prompts": [[ids], ...]}   computes the prompts; every request has its first token afterwards
    {"do": "advance", "tokens": n}             n more tokens of every request, greedy, never stopping
    {"do": "end"}                              forgets the requests
    {"do": "memory"}                           {"peak_bytes": ...} of this process
Every answer has "seconds", by this process's clock. Only the standard library: it runs in every peer's environment.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Load:
    """What a peer is told before it loads. max_context: tokens of one request; max_batch: requests together."""

    model: str
    threads: int
    max_context: int
    max_batch: int
    options: dict[str, Any] = field(default_factory=dict)


class Peer(Protocol):
    """An engine behind the protocol. Requests of one `begin` have prompts of equal length."""

    def load(self, load: Load) -> None: ...
    def versions(self) -> dict[str, str]: ...

    def begin(self, prompts: Prompts) -> None: ...
    def advance(self, tokens: int) -> None: ...
    def end(self) -> None: ...

    def first_ids(self) -> list[int]:
        """Output tokens of the first request since `begin`: how much peers agree."""
        ...


def serve(make_peer: Callable[[], Peer]) -> None:
    """Answer commands until the input ends. What an engine prints goes to stderr."""
    _end_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    peer = make_peer()
    for line in sys.stdin:
        try:
            answer = _answer(peer, json.loads(line))
        except Exception as error:  # the harness decides what a failure means
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


def _end_with_parent() -> None:
    """A process that is stopped would not notice that nobody speaks to it any more."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _answer(peer: Peer, command: dict[str, Any]) -> dict[str, Any]:
    do = command.pop("do")
    if do == "memory":
        return {"peak_bytes": peak_bytes()}
    start = time.perf_counter()
    answer: dict[str, Any] = {}
    if do == "load":
        peer.load(Load(**command))
    elif do == "begin":
        peer.begin(command["prompts"])
    elif do == "advance":
        peer.advance(command["tokens"])
    elif do == "end":
        peer.end()
    else:
        raise ValueError(f"unknown command {do!r}")
    answer["seconds"] = time.perf_counter() - start
    if do == "load":
        answer["versions"] = peer.versions()
    if do in ("begin", "advance"):
        answer["ids"] = peer.first_ids()
    return answer


def peak_bytes() -> int:
    """The most that was resident, of this program: getrusage would count what was before exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0
