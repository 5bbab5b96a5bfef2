"""Seconds of one kernel on a device known by its data sheet: bounded by bytes, by arithmetic, or by its start.

    matmul, experts   (bytes / bandwidth) ⊕ (FLOPs / peak),  a ⊕ b = (aᵖ + bᵖ)^(1/p);  p = inf: the larger of both
    attention         the larger of both: each request is read and computed by blocks of threads of its own
    recurrence, rows  likewise
    collective        the faster of an exchange in one step and of a ring; over a network, a tree

plus what starting it costs. Each is divided by its share of the peak (efficiency.py). Knows no step and no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from kvwise.backends.price.efficiency import Efficiency
from kvwise.backends.price.engines import EngineTiming
from kvwise.errors import NotMeasured
from kvwise.frozen import dataclass
from kvwise.hardware.devices import Device, Link
from kvwise.program.cost import OpCost

ACTIVATION_BYTES: Final = 2  # of an element: engines keep activations in 16 bits
# Which arithmetic multiplies a weight type, where the device has it. Others are unpacked and multiplied in 16 bits.
_NARROW: Final[Mapping[str, str]] = {"fp8": "fp8", "nvfp4": "fp4"}
_WIDE: Final = ("bf16", "f16", "f32")  # the 16-bit peak, or what comes nearest to it


class KernelTime(NamedTuple):
    """memory_s and arithmetic_s alone, fixed_s beside them; `seconds` in all."""

    memory_s: float
    arithmetic_s: float
    fixed_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class KernelClock:
    """One device of a placement on which an engine runs; `compute` multiplies all weights in this type, if given.

    Methods raise NotMeasured where the device's sheet lacks what they need.
    """

    device: Device
    engine: EngineTiming
    efficiency: Efficiency
    compute: str | None = None

    def matmul(self, weight_type: str, cost: OpCost, read_elements: int, elements: int) -> KernelTime:
        """read_elements: of the input; elements: input and output."""
        e = self.efficiency
        dtype = self._arithmetic(weight_type)
        narrow = dtype in ("fp8", "int8", "fp4")
        memory_s = (cost.weight_bytes + ACTIVATION_BYTES * elements) / (self._bandwidth * e.matmul_bandwidth)
        arithmetic_s = cost.flops / (self.device.peak(dtype) * (e.matmul_flops_8 if narrow else e.matmul_flops_16))
        fixed_s = e.kernel_s
        if narrow and self.engine.quantizes_apart:  # a pass that reads 16-bit elements and writes 8-bit ones
            fixed_s += e.kernel_s + (ACTIVATION_BYTES + 1) * read_elements / (self._bandwidth * e.rows_bandwidth)
        return KernelTime(memory_s, arithmetic_s, fixed_s, _joined(memory_s, arithmetic_s, e.matmul_overlap) + fixed_s)

    def experts(self, weight_type: str, cost: OpCost, elements: int) -> KernelTime:
        e = self.efficiency
        memory_s = (cost.weight_bytes + ACTIVATION_BYTES * elements) / (self._bandwidth * e.experts_bandwidth)
        arithmetic_s = cost.flops / (self.device.peak(self._arithmetic(weight_type)) * e.experts_flops)
        fixed_s = e.kernel_s * self.engine.expert_kernels
        return KernelTime(memory_s, arithmetic_s, fixed_s, _joined(memory_s, arithmetic_s, e.matmul_overlap) + fixed_s)

    def attention(self, cost: OpCost, elements: int) -> KernelTime:
        """Of requests that are bound alike. Without what starts it: `attention_fixed_s`."""
        e = self.efficiency
        moved = cost.kv_read_bytes + cost.kv_write_bytes + cost.weight_bytes + ACTIVATION_BYTES * elements
        memory_s = moved / (self._bandwidth * e.attention_bandwidth)
        arithmetic_s = cost.flops / (self.device.peak(self._wide) * e.attention_flops)
        return KernelTime(memory_s, arithmetic_s, 0.0, max(memory_s, arithmetic_s))

    @property
    def attention_fixed_s(self) -> float:
        return self.efficiency.kernel_s * self.engine.attention_kernels

    def rows(self, cost: OpCost, elements: int) -> KernelTime:
        e = self.efficiency
        moved = cost.weight_bytes + cost.state_bytes + ACTIVATION_BYTES * elements
        memory_s = moved / (self._bandwidth * e.rows_bandwidth)
        arithmetic_s = cost.flops / (self.device.peak(self._wide) * e.attention_flops)
        return KernelTime(memory_s, arithmetic_s, e.kernel_s, max(memory_s, arithmetic_s) + e.kernel_s)

    def all_reduce(self, elements: int, ranks: int) -> KernelTime:
        """Each of `ranks` ends with the sum: 2 (n - 1) / n of it travel from and to each."""
        return self._exchange(2 * ACTIVATION_BYTES * elements * (ranks - 1) / ranks, ranks)

    def all_gather(self, elements: int, ranks: int) -> KernelTime:
        """`elements` in all, of which each rank brings its part."""
        return self._exchange(ACTIVATION_BYTES * elements * (ranks - 1) / ranks, ranks)

    def send(self, elements: int, devices: int) -> KernelTime:
        """From one device to the next of `devices`."""
        link = self.device.link(devices)
        memory_s = ACTIVATION_BYTES * elements / (link.bandwidth * self.efficiency.large_link)
        fixed_s = self.efficiency.message_s
        return KernelTime(memory_s, 0.0, fixed_s, memory_s + fixed_s)

    def _exchange(self, link_bytes: float, ranks: int) -> KernelTime:
        e, link = self.efficiency, self.device.link(ranks)
        ring = (link_bytes / (link.bandwidth * e.large_link), e.ring_s + self._tree_s(link, ranks))
        if link is self.device.links[0]:
            start_s = e.message_s + e.message_device_s * ranks
            ring = min(ring, (link_bytes / (link.bandwidth * e.small_link), start_s), key=sum)
        moving_s, fixed_s = ring
        return KernelTime(moving_s, 0.0, fixed_s, moving_s + fixed_s)

    def _tree_s(self, link: Link, ranks: int) -> float:
        """Up and down a tree over a network; inside one machine the latencies are in ring_s."""
        inside = link is self.device.links[0] or not self.efficiency.ring_s
        return 0.0 if inside else 2 * math.ceil(math.log2(ranks)) * link.latency_s

    @property
    def _bandwidth(self) -> float:
        return self.device.memory_bandwidth()

    @property
    def _wide(self) -> str:
        found = next((dtype for dtype in _WIDE if dtype in self.device.peaks), None)
        if found is None:
            raise NotMeasured(f"peaks of {self.device.name}: not known")
        return found

    def _arithmetic(self, weight_type: str) -> str:
        if self.compute is not None:
            return self.compute
        narrow = _NARROW.get(weight_type, "")
        return narrow if narrow in self.device.peaks else self._wide


def _joined(a: float, b: float, p: float) -> float:
    """(aᵖ + bᵖ)^(1/p), computed so that neither under- nor overflows."""
    larger, smaller = max(a, b), min(a, b)
    if not larger or math.isinf(p):
        return larger
    return float(larger * (1 + (smaller / larger) ** p) ** (1 / p))
