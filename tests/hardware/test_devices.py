"""The devices that ship, and placements on them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.errors import NotMeasured, UsageError
from kvwise.hardware.devices import Device, Placement, devices, find_device, parse_placement
from kvwise.units import GB, GiB, MiB

DTYPES = {"f32", "bf16", "f16", "fp8", "int8", "fp4"}


@pytest.mark.parametrize("device", devices(), ids=lambda d: d.name)
def test_every_device_has_sound_figures_with_sources(device: Device) -> None:
    assert device.source("bandwidth")
    assert device.memory_rule
    assert set(device.peaks) <= DTYPES
    for figure in (device.bandwidth, device.memory_sheet_bytes, device.memory_reported_bytes, *device.peaks.values()):
        assert figure is None or figure > 0
    assert [link.bandwidth for link in device.links] == sorted((n.bandwidth for n in device.links), reverse=True)
    assert all(link.source and link.latency_s > 0 for link in device.links)
    assert all(0 <= p.low <= p.value <= p.high and p.source for p in device.efficiency.values())


@pytest.mark.parametrize("device", devices(), ids=lambda d: d.name)
def test_sixteen_bits_are_no_faster_than_eight(device: Device) -> None:
    slow, fast = device.peaks.get("bf16"), device.peaks.get("fp8")
    assert slow is None or fast is None or slow <= fast


@pytest.mark.parametrize("device", [d for d in devices() if d.memory_sheet_bytes], ids=lambda d: d.name)
def test_what_programs_may_fill_is_never_more_than_there_is(device: Device) -> None:
    assert device.memory_usable_bytes is not None
    assert device.memory_sheet_bytes is not None
    most = device.memory_reported_bytes or device.memory_sheet_bytes * GiB // GB  # memory is sold in GiB, called GB
    assert 0 < device.memory_usable_bytes <= most


def test_the_rule_for_devices_without_a_drivers_figure_is_on_the_safe_side() -> None:
    """What is sold as N GB reports at least N · 1e9 bytes, wherever a driver's figure is known."""
    known = [d for d in devices() if d.memory_reported_bytes and d.memory_sheet_bytes]
    assert len(known) > 10
    assert all(d.memory_sheet_bytes <= d.memory_reported_bytes for d in known)  # type: ignore[operator]


def test_what_cuda_leaves_of_a_drivers_figure_is_at_least_the_share_that_the_rule_takes() -> None:
    known = [d for d in devices() if d.memory_rule.startswith("total memory as CUDA") and d.memory_reported_bytes]
    shares = [d.memory_usable_bytes / d.memory_reported_bytes for d in known]  # type: ignore[operator]
    assert len(shares) > 5
    assert all(d.memory_rule.startswith("0.977") for d in devices() if "of what the driver reports" in d.memory_rule)
    assert 0.977 <= min(shares) < 0.979


def test_names_and_aliases_mean_one_device_each() -> None:
    names = [name for device in devices() for name in (device.name, *device.aliases)]
    keys = ["".join(c for c in name.lower() if c.isalnum() or c == "+") for name in names]
    assert len(keys) == len(set(keys))
    assert all(find_device(name).name == device.name for device in devices() for name in (device.name, *device.aliases))


def test_a_known_sheet() -> None:
    h100 = find_device("H100")
    assert h100.memory_sheet_bytes == 80 * GB
    assert h100.memory_reported_bytes == 81559 * MiB
    assert h100.bandwidth == 3350e9
    assert h100.peak("bf16") == 989.4e12
    assert h100.link(8).bandwidth == 450e9
    assert h100.link(16).bandwidth == 50e9


def test_an_unknown_device_is_refused_with_near_names() -> None:
    with pytest.raises(UsageError, match="RTX 3090"):
        find_device("rtx 3080")


def test_what_no_source_has_is_refused_not_guessed() -> None:
    with pytest.raises(NotMeasured, match="fp8"):
        find_device("a100").peak("fp8")
    with pytest.raises(NotMeasured):
        find_device("m2-max").link(2)
    with pytest.raises(NotMeasured):
        find_device("this").memory_bandwidth()


@pytest.mark.parametrize(
    ("text", "tensor_parallel", "pipeline_parallel"),
    [("a10g", 1, 1), ("h100:4", 4, 1), ("h100:tp4", 4, 1), ("h100:tp2,pp2", 2, 2), ("h100:pp2, tp8", 8, 2)],
)
def test_placements_are_read(text: str, tensor_parallel: int, pipeline_parallel: int) -> None:
    placement = parse_placement(text)
    assert (placement.tensor_parallel, placement.pipeline_parallel) == (tensor_parallel, pipeline_parallel)
    assert placement.num_devices == tensor_parallel * pipeline_parallel


@pytest.mark.parametrize("text", ["", "h100:", "h100:0", "h100:tp2,tp2", "h100:-1", "h100:ep2", "h100:99999", "this:2"])
def test_what_is_no_placement_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_placement(text)


@given(st.sampled_from(devices()), st.integers(1, 64), st.integers(1, 64))
def test_a_placement_reads_back_as_it_is_written(device: Device, tensor_parallel: int, pipeline_parallel: int) -> None:
    placement = Placement(device, tensor_parallel, pipeline_parallel)
    assert parse_placement(str(placement)) == placement
