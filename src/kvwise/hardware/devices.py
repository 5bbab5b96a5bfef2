"""Devices by name, from data sheets: memory, bandwidth, peaks, links, each figure with its source; and placements.

The figures are rows of devices.json beside this module. What runs here is measured instead (profile.py); the device
"this" only stands for it. Knows no model.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from importlib import resources
from typing import Any, Final

from kvwise.errors import NotMeasured, UsageError
from kvwise.frozen import dataclass

THIS: Final = "this"
MAX_PARALLEL: Final = 4096  # devices of one placement; a larger number is a typing error

_DATA: Final = "devices.json"
_NEAR_NAMES: Final = 5
_SPLIT: Final = re.compile(r"(tp|pp)?(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Link:
    """A way from a device to its peers: bytes/s in each direction, all peers together, and the latency of a message.

    max_devices: how many devices it joins; None: as many as there are.
    """

    name: str
    bandwidth: float
    latency_s: float
    max_devices: int | None
    source: str


@dataclass(frozen=True, slots=True)
class Prior:
    """A figure that stands for a measurement until there is one: the expected value and what sources range over."""

    value: float
    low: float
    high: float
    source: str


@dataclass(frozen=True, slots=True)
class Device:
    """One device as its sheet and its driver describe it. None: not known, never a guess.

    memory_sheet_bytes: as it is sold; memory_reported_bytes: as the driver reports it; memory_usable_bytes: what
    programs may fill, by the rule memory_rule. bandwidth: memory bytes/s. peaks: dense FLOP/s (or integer operations)
    by "f32", "bf16", "f16", "fp8", "int8", "fp4". links: the fastest first. efficiency: "decode_bandwidth" and
    "prefill_flops" as shares of the peaks, "op_seconds" of each operation. sources: by the name of a field; "" for
    all others.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    kind: str
    memory_sheet_bytes: int | None
    memory_reported_bytes: int | None
    memory_usable_bytes: int | None
    memory_rule: str
    bandwidth: float | None
    peaks: Mapping[str, float]
    links: tuple[Link, ...]
    efficiency: Mapping[str, Prior]
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def source(self, figure: str) -> str:
        """Where the figure of field `figure` is from."""
        return self.sources.get(figure, self.sources.get("", ""))

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s in `dtype`. Raises NotMeasured where no source has it."""
        if dtype not in self.peaks:
            known = ", ".join(self.peaks) or "none"
            raise NotMeasured(f"peak of {self.name} in {dtype}: not known", expected=f"one of {known}")
        return self.peaks[dtype]

    def memory_bandwidth(self) -> float:
        """Bytes/s. Raises NotMeasured where no source has it."""
        if self.bandwidth is None:
            raise NotMeasured(f"memory bandwidth of {self.name}: not known")
        return self.bandwidth

    def link(self, num_devices: int) -> Link:
        """The fastest link that joins `num_devices`. Raises NotMeasured where there is none."""
        for link in self.links:
            if link.max_devices is None or num_devices <= link.max_devices:
                return link
        raise NotMeasured(f"a link between {num_devices} x {self.name}: none is known")


@dataclass(frozen=True, slots=True)
class Placement:
    """A model on tensor_parallel x pipeline_parallel equal devices: layers are cut into stages, matrices into ranks."""

    device: Device
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    @property
    def num_devices(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def is_this_machine(self) -> bool:
        return self.device.name == THIS

    def __str__(self) -> str:
        """As parse_placement reads it: 'H100 SXM5 80GB:tp2,pp2'."""
        parts = [("tp", self.tensor_parallel), ("pp", self.pipeline_parallel)]
        split = ",".join(f"{kind}{n}" for kind, n in parts if n > 1)
        return f"{self.device.name}:{split}" if split else self.device.name


def parse_placement(text: str) -> Placement:
    """'a10g', 'h100:4' (tensor parallel), 'h100:tp2,pp2', 'this'. Raises UsageError."""
    if not isinstance(text, str):
        raise UsageError(f"a placement is {type(text).__name__}", expected="text such as h100:tp2,pp2")
    name, colon, split = text.partition(":")
    degrees: dict[str, int] = {}
    for part in split.split(",") if colon else ():
        match = _SPLIT.fullmatch(part.strip().lower())
        kind = (match[1] or "tp") if match else ""
        if match is None or kind in degrees or not 1 <= int(match[2]) <= MAX_PARALLEL:
            raise UsageError(
                f"placement {text!r} can't be read",
                expected=f"DEVICE, DEVICE:4 or DEVICE:tp2,pp2, with 1 to {MAX_PARALLEL} of each",
            )
        degrees[kind] = int(match[2])
    placement = Placement(find_device(name), degrees.get("tp", 1), degrees.get("pp", 1))
    if placement.is_this_machine and placement.num_devices > 1:
        raise UsageError("this machine is one device", expected="this, without a number")
    return placement


def find_device(name: str) -> Device:
    """The device that `name` or one of its aliases means, whatever its case and punctuation.

    Raises UsageError, naming near ones.
    """
    if not isinstance(name, str):
        raise UsageError(f"a device is {type(name).__name__}", expected="its name")
    key = _key(name)
    if key == THIS:
        return this_device()
    found = _by_key().get(key)
    if found is None:
        near = _near(key)
        raise UsageError(
            f"no device {name!r}" if key else "no device is named",
            expected=f"one such as {', '.join(near)}" if near else "",
            action="`kvwise devices` lists them",
        )
    return found


@cache
def devices() -> tuple[Device, ...]:
    """Every device that kvwise knows, in the order of the data. Not "this"."""
    text = (resources.files("kvwise.hardware") / _DATA).read_text("utf-8")
    content: dict[str, Any] = json.loads(text)
    return tuple(_read_device(row, content["priors"]) for row in content["devices"])


def this_device() -> Device:
    """What stands for the machine we run on: its physical memory; the rest is for a profile to measure."""
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):  # no such name, or no sysconf at all
        physical = None
    return Device(
        THIS, (), "", "cpu", None, physical, physical, "physical memory, as the system reports it", None, {}, (), {},
        {"": "sysconf"}, ("measured by `kvwise probe`, not looked up",),
    )  # fmt: skip


def _read_device(row: Mapping[str, Any], priors: Mapping[str, Any]) -> Device:
    """`priors` by kind of device; a row has those of its own beside them."""
    efficiency = {**priors.get(row["kind"], {}), **row.get("efficiency", {})}
    parts = {
        "aliases": tuple(row["aliases"]),
        "links": tuple(Link(**link) for link in row["links"]),
        "efficiency": {name: Prior(**prior) for name, prior in efficiency.items()},
        "notes": tuple(row["notes"]),
    }
    return Device(**{**row, **parts})


@cache
def _by_key() -> Mapping[str, Device]:
    return {_key(name): device for device in devices() for name in (device.name, *device.aliases)}


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9+]", "", name.lower())


def _near(key: str) -> list[str]:
    """Names like `key`: those it is a part of, then those that are spelled alike."""
    if len(key) < 2:
        return []
    keys = list(_by_key())
    near = [k for k in keys if key in k or k in key] + difflib.get_close_matches(key, keys, _NEAR_NAMES, 0.6)
    return list(dict.fromkeys(_by_key()[k].name for k in near))[:_NEAR_NAMES]
