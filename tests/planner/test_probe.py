"""Measuring the machine never fails a run: where it can't be done, the figures are not measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvwise.backends.reference.backend import REFERENCE
from kvwise.errors import BackendError, NotMeasured
from kvwise.hardware.profile import DeviceProfile
from kvwise.ledger.host import HostMemory, MemoryLimit
from kvwise.planner.probe import CONTEXT, FEW_ROWS, MANY_ROWS, NEEDED_BYTES, machine_profile


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


def test_slow_steps_are_measured_once_and_with_few_rows(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    run = type(REFERENCE).load

    def watched(*args: Any) -> Any:
        loaded = run(*args)
        compute = loaded.run
        monkeypatch.setattr(loaded, "run", lambda batch: (rows.append(batch.num_tokens), compute(batch))[1])
        return loaded

    monkeypatch.setattr(type(REFERENCE), "load", watched)
    monkeypatch.setattr("kvwise.planner.probe.SLOW_S", 0.0)
    machine_profile("reference", 1, ["f32"])
    timed = [n for n in rows if n not in (1, MANY_ROWS)]
    assert timed == [FEW_ROWS] * 3  # two kinds of matmul, and attention
    assert rows.count(MANY_ROWS) == 1 + CONTEXT // MANY_ROWS  # elementwise, and the cache is filled


def test_every_instruction_set_that_is_chosen_by_hand_has_its_own_profile(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvwise.planner.probe._probe", lambda *_: DeviceProfile("a machine", 1, "a test"))
    for isa in ("", "scalar", " SCALAR ", "avx2"):
        monkeypatch.setenv("KVWISE_ISA", isa)
        machine_profile("native", 1, [])
    assert len(list((cache_dir / "profiles").iterdir())) == 3
