"""What is said of the machine: enough to read results by, nothing about whose it is; and how busy others kept it."""

from __future__ import annotations

import getpass
import json
import os
import platform
import time

import pytest

from kvwise.studies import machine
from kvwise.studies.machine import describe_machine, watching_others


def test_the_description_is_json_and_names_neither_host_nor_user() -> None:
    described = describe_machine(threads=2)
    text = json.dumps(described)
    assert described["threads"] == 2
    assert described["memory_bytes"] > 0
    assert platform.node() not in text
    assert getpass.getuser() not in text


def test_what_this_process_did_not_use_is_used_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, own, clock = iter([100.0, 103.0]), iter([50.0, 51.0]), iter([0.0, 10.0])
    monkeypatch.setattr(machine, "_busy_s", lambda: next(busy))
    monkeypatch.setattr(time, "process_time", lambda: next(own))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    with watching_others() as others:
        pass
    assert others.share == (103 - 100 - (51 - 50)) / (4 * 10)


def test_a_tick_of_the_kernel_is_never_more_than_the_whole_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, clock = iter([100.0, 100.01]), iter([0.0, 0.0001])
    monkeypatch.setattr(machine, "_busy_s", lambda: next(busy))
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    with watching_others() as others:
        pass
    assert others.share == 1.0


def test_a_kernel_that_says_nothing_counts_as_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_busy_s", lambda: 0.0)
    with watching_others() as others:
        pass
    assert others.share == 0.0
