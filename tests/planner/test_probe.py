"""Measuring the machine never fails a run: where it can't be done, the figures are not measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwise.backends.reference.backend import REFERENCE
from kvwise.errors import BackendError, NotMeasured
from kvwise.ledger.host import HostMemory, MemoryLimit
from kvwise.planner.probe import NEEDED_BYTES, machine_profile


def test_with_too_little_memory_nothing_is_allocated_to_measure(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowded = HostMemory(2**40, (MemoryLimit("a test", NEEDED_BYTES - 1),))
    monkeypatch.setattr("kvwise.planner.probe.read_host_memory", lambda: crowded)
    monkeypatch.setattr("kvwise.planner.probe._probe", lambda *_: pytest.fail("measured"))
    with pytest.raises(NotMeasured, match="that takes 320 MiB"):
        machine_profile("reference", 1, ["f32"])
    assert not cache_dir.exists()


@pytest.mark.parametrize("problem", [BackendError("no memory for the arena"), MemoryError()])
def test_a_backend_that_cannot_be_measured_is_not(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    def fail(*_: object) -> None:
        raise problem

    monkeypatch.setattr(type(REFERENCE), "load", fail)
    with pytest.raises(NotMeasured, match="not measured"):
        machine_profile("reference", 1, ["f32"])
    assert not cache_dir.exists()
