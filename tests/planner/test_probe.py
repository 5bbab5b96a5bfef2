"""Measuring the machine never fails a run, keeps what it found, and is not misled by what was disturbed."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.backends.price.price import GLU, ROW_KINDS
from kvwise.backends.reference.backend import REFERENCE
from kvwise.errors import BackendError, NotMeasured
from kvwise.hardware.profile import DeviceProfile, StreamFigures, load_profile
from kvwise.ledger.host import HostMemory, MemoryLimit
from kvwise.planner import probe, probe_samples
from kvwise.planner.probe import (
    NEEDED_BYTES,
    ProbeResult,
    machine_profile,
    machine_profile_path,
    probe_machine,
)
from kvwise.planner.probe_bench import timing
from kvwise.planner.probe_samples import Points, Samples

TINY = Points((1, 4), (1 << 10,), (1,), (1, 4), (16,), 2)
FIXED = DeviceProfile("m", 1, "s", op_seconds=1e-7, pass_seconds=1e-6)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, cache_dir: Path) -> Path:
    """A cache of its own, and measurements that take no time."""
    for name, value in (("HIDDEN", 64), ("INTERMEDIATE", 128), ("SMALL", 32), ("SMALL_PAIRS", 4), ("LARGE_PAIRS", 1),
                        ("ROWS_OF_OPS", (2, 16)), ("_WIDE_VOCAB", 256), ("CONTEXT", 64), ("ROW_OPS", 2),
                        ("ENGINE_REQUESTS", 2)):  # fmt: skip
        monkeypatch.setattr(probe_samples, name, value)
        if name in ("HIDDEN", "INTERMEDIATE", "CONTEXT"):
            monkeypatch.setattr(f"kvwise.planner.probe_bench.{name}", value)
    monkeypatch.setattr("kvwise.planner.probe_bench.MANY_ROWS", 32)
    monkeypatch.setattr("kvwise.planner.probe_bench.ROW_OPS", 2)
    monkeypatch.setattr(probe, "FEW", TINY)
    return cache_dir


def test_with_too_little_memory_nothing_is_allocated_to_measure(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowded = HostMemory(2**40, (MemoryLimit("a test", NEEDED_BYTES - 1),))
    monkeypatch.setattr("kvwise.planner.probe.read_host_memory", lambda: crowded)
    monkeypatch.setattr("kvwise.planner.probe._probe", lambda *_: pytest.fail("measured"))
    with pytest.raises(NotMeasured, match="that takes 256 MiB"):
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


def test_a_profile_holds_all_that_a_price_asks_for_and_is_kept(tiny: Path) -> None:
    kinds = ["f32", "kv f16 x 16"]
    profile = machine_profile("reference", 1, kinds)
    assert set(profile.streams) == set(kinds)
    assert set(profile.rows) == {*ROW_KINDS.values(), GLU}
    for name in ("op_seconds", "pass_seconds", "step_seconds", "request_seconds", "logit_seconds"):
        assert profile.figure(name) > 0
    assert [rows for rows, _ in profile.streams["f32"].by_rows] == [1, 4]
    assert load_profile(machine_profile_path("reference", 1)) == profile


def test_what_is_known_is_not_measured_again_and_what_is_not_is_added(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine_profile("reference", 1, ["f32"])
    monkeypatch.setattr(Samples, "rows", lambda *_: pytest.fail("measured"))
    both = machine_profile("reference", 1, ["f16"])
    assert set(both.streams) == {"f32", "f16"}
    assert both.streams["f32"] == first.streams["f32"]
    monkeypatch.setattr(Samples, "stream", lambda *_: pytest.fail("measured"))
    assert machine_profile("reference", 1, ["f16", "f32"]) == both
    with pytest.raises(NotMeasured, match="kvwise probe"):
        machine_profile("reference", 1, ["q8_0"], measure=False)


def test_a_probe_tells_what_it_measures_and_how_far_it_is(tiny: Path) -> None:
    told: list[tuple[str, float]] = []
    result = probe_machine("reference", 1, ["f32"], points=TINY, report=lambda what, share: told.append((what, share)))
    assert {what for what, _ in told} >= {"ops on rows", "the engine", "passes", "f32"}
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert len(told) == TINY.rounds * 4
    assert result.profile.spread >= 0


def test_rounds_that_differ_are_told_by_name() -> None:
    result = ProbeResult(DeviceProfile("m", 1, "s"), {"f32": 0.02, "q8_0": 0.4})
    assert result.disturbed == ("q8_0",)


def stream(memory: float, cached: float) -> StreamFigures:
    return StreamFigures(((1.0, ((1e6, cached), (1e9, memory))),))


def test_what_changed_since_the_profile_before_is_told_and_widens_the_spread(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probed(profile: DeviceProfile) -> ProbeResult:
        monkeypatch.setattr("kvwise.planner.probe._probe", lambda *_: ProbeResult(profile, {}))
        return probe_machine("reference", 1, ["f32"], points=TINY)

    first = replace(FIXED, streams={"f32": stream(2e-10, 1e-10), "f16": stream(1e-9, 1e-9)}, thorough=True)
    assert probed(first).changes == {}
    changed = probed(replace(first, streams={"f32": stream(3e-10, 8e-11)}))
    assert changed.changes == pytest.approx({"memory": 1 / 1.5, "arithmetic": 1.25})
    assert changed.profile.spread == pytest.approx(math.log(1.5) / 2)
    assert changed.profile.streams["f16"] == first.streams["f16"]
    again = probed(replace(first, streams=changed.profile.streams))
    assert again.changes == pytest.approx({"memory": 1, "arithmetic": 1})
    assert again.profile.spread == pytest.approx(changed.profile.spread / 2)


def test_what_a_price_adds_for_passes_is_not_in_a_streams_seconds() -> None:
    samples = Samples(REFERENCE, 1, TINY)
    samples.seconds["f32", 1, 1000].append(5e-9)
    samples.passes_of["f32", 1, 1000] = 2 / 1000
    passes_s = 2 * (1e-6 + 2 * 1e-7)
    assert samples.figures("f32", FIXED).seconds_per_byte(1, 1000) == pytest.approx(5e-9 - passes_s / 1000)


@given(
    st.dictionaries(st.tuples(st.integers(1, 64), st.integers(1, 6)), st.floats(1e-12, 1e-6), min_size=1, max_size=12)
)
def test_disturbed_points_never_make_less_work_slower(found: dict[tuple[int, int], float]) -> None:
    samples = Samples(REFERENCE, 1, TINY)
    for (rows, size), seconds in found.items():
        samples.seconds["f32", rows, 2.0**size].append(seconds)
    figures = samples.figures("f32", FIXED)
    for _, sets in figures.by_rows:
        seconds = [s for _, s in sets]
        assert seconds == sorted(seconds)
    for size in (1.0, 5.0, 64.0):
        of_rows = [figures.seconds_per_byte(rows, size) for rows, _ in figures.by_rows]
        assert all(few <= many * (1 + 1e-9) for few, many in pairwise(of_rows)) or len(found) > len(figures.by_rows)


def test_slow_steps_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvwise.planner.probe_bench.ENOUGH_S", 0.0)
    runs: list[int] = []
    timing(lambda: runs.append(1))
    assert len(runs) == 1


def test_slow_kernels_are_not_measured_with_more_rows(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_samples, "SLOW_S", 0.0)
    monkeypatch.setattr(probe, "FEW", Points((1, 2, 4, 8), (1 << 10, 1 << 17), (1,), (1,), (), 1))
    profile = machine_profile("reference", 1, ["f32"])
    assert [rows for rows, _ in profile.streams["f32"].by_rows] == [1, 2]


def test_every_instruction_set_that_is_chosen_by_hand_has_its_own_profile(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probed(*_: Any) -> ProbeResult:
        return ProbeResult(DeviceProfile("a machine", 1, "a test"), {})

    monkeypatch.setattr("kvwise.planner.probe._probe", probed)
    for isa in ("", "scalar", " SCALAR ", "avx2"):
        monkeypatch.setenv("KVWISE_ISA", isa)
        machine_profile("native", 1, [])
    assert len(list((cache_dir / "profiles").iterdir())) == 3
