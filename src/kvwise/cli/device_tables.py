"""The tables of `kvwise devices`, for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from kvwise.units import GB, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from kvwise.hardware.devices import Device

_DTYPES: Final = ("f32", "bf16", "f16", "fp8", "int8", "fp4")
_TERA: Final = 1e12


def device_table(chosen: Iterable[Device]) -> Table:
    """One row each; a dash where no source has the figure. Peaks are dense."""
    from rich.table import Table

    table = Table(caption="peaks dense, in TFLOP/s and (int8) TOP/s; links: each direction", caption_justify="left")
    table.add_column("device", overflow="fold")
    table.add_column("also", overflow="fold")
    for name in ("sold as", "reported", "usable", "bandwidth", *_DTYPES, "link"):
        table.add_column(name, justify="right")
    for device in chosen:
        sold = "-" if device.memory_sheet_bytes is None else f"{device.memory_sheet_bytes / GB:g} GB"
        held = (_size(device.memory_reported_bytes), _size(device.memory_usable_bytes))
        peaks = (f"{device.peaks[d] / _TERA:,g}" if d in device.peaks else "-" for d in _DTYPES)
        link = device.links[0] if device.links else None
        fastest = "-" if link is None else f"{link.name} {link.bandwidth / GB:g} GB/s"
        also = ", ".join(device.aliases[:2])
        table.add_row(device.name, also, sold, *held, _rate(device.bandwidth), *peaks, fastest)
    return table


def describe_device(device: Device) -> Iterator[str]:
    """Every figure's rule and source, one line each."""
    yield f"usable memory: {device.memory_rule}"
    for link in device.links:
        reach = "any number" if link.max_devices is None else f"up to {link.max_devices}"
        latency = format_seconds(link.latency_s)
        yield f"link {link.name}: {_rate(link.bandwidth)}, {latency}, joins {reach} of them ({link.source})"
    for name, prior in device.efficiency.items():
        yield f"{name.replace('_', ' ')}: {prior.value:g} ({prior.low:g} to {prior.high:g}; {prior.source})"
    for figure, source in device.sources.items():
        yield f"source{' of ' + figure if figure else ''}: {source}"
    yield from (f"note: {note}" for note in device.notes)


def _size(nbytes: int | None) -> str:
    return "-" if nbytes is None else format_bytes(nbytes)


def _rate(bandwidth: float | None) -> str:
    return "-" if bandwidth is None else f"{bandwidth / GB:,g} GB/s"
