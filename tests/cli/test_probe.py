"""`kvwise probe`: a table or one object of what the machine does, and a profile that plans and runs use."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Kvwise
from kvwise.hardware.profile import DeviceProfile, StreamFigures
from kvwise.planner.probe import ProbeResult

STREAM = StreamFigures(((1.0, ((1e6, 1e-11), (1e8, 2.5e-11))), (64.0, ((1e6, 4e-10),))))
PROFILE = DeviceProfile(
    "a machine", 3, "a test", {"q8_0*q8": STREAM, "kv f16 x 64": STREAM}, {"add": ((1e4, 1e-6),)},
    1e-6, 2e-6, 3e-6, 4e-6, 1e-9, spread=0.04, thorough=True,
)  # fmt: skip


@pytest.fixture
def measured(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What was asked to be measured."""
    asked: list[tuple[object, ...]] = []

    def probe_machine(backend: str, threads: int, kinds: list[str], *, points: object, **_: object) -> ProbeResult:
        asked.append((backend, threads, kinds, points))
        return ProbeResult(PROFILE, {"q8_0*q8": 0.4, "kv f16 x 64": 0.01})

    monkeypatch.setattr("kvwise.planner.probe.probe_machine", probe_machine)
    return asked


def test_a_person_reads_speeds_and_what_was_disturbed(
    kvwise: Kvwise, tiny: str, measured: list[tuple[object, ...]]
) -> None:
    out = kvwise("probe", tiny).out
    assert "a machine, 3 threads" in out
    for figure in ("100.0", "40.0", "160", "2.0 us", "disturbed: q8_0*q8"):  # GB/s of cache and memory, 64 rows
        assert figure in out
    assert "kv f16 x 64 differed" not in out


def test_a_program_reads_one_object(kvwise: Kvwise, tiny: str, measured: list[tuple[object, ...]]) -> None:
    read = kvwise("probe", tiny, "--json").json
    assert read["profile"]["device"] == "a machine"
    assert read["disturbed"] == ["q8_0*q8"]
    assert read["path"].endswith("t.json")


def test_what_is_measured_is_what_the_named_models_need(
    kvwise: Kvwise, tiny: str, measured: list[tuple[object, ...]]
) -> None:
    from kvwise.engine.model import open_model
    from kvwise.planner.probe import ALL, FEW

    kvwise("probe", tiny, "--threads", "1", "--quick")
    kvwise("probe", tiny, "--threads", "1")
    with open_model(tiny) as opened:
        kinds = sorted(opened.stream_kinds)
    assert measured == [("native", 1, kinds, FEW), ("native", 1, kinds, ALL)]


@pytest.mark.parametrize("wrong", [("no-such-model",), ("--threads", "0"), ("--backend", "none"), ("--kv-dtype", "f8")])
def test_what_can_not_be_measured_for_is_bad_usage(
    kvwise: Kvwise, wrong: tuple[str, ...], measured: list[tuple[object, ...]]
) -> None:
    assert kvwise("probe", *wrong).code == 2
    assert not measured


def test_a_quick_probe_of_this_machine_is_believed_by_the_next_plan(kvwise: Kvwise, tiny: str, cache_dir: Path) -> None:
    assert "latency on" not in kvwise("plan", tiny).out
    assert kvwise("probe", tiny, "--quick", "--json").code == 0
    out = kvwise("plan", tiny).out
    assert "latency on" in out
    assert "each further token" in out
