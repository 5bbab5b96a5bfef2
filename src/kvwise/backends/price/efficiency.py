"""What share of a data sheet's peaks serving kernels reach, and what each of them costs besides: one table.

Each constant has the range that sources give, the reason why it is not 1 or 0, and where it is from. They were set
from these sources before any serving latency was looked at, but for those whose source says "serving points": the
H100 measurements that benchmarks/h100_validation.py compares with. Knows no model and no engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from kvwise.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Constant:
    """`value` in `unit`, between `low` and `high` in what sources report."""

    value: float
    low: float
    high: float
    unit: str
    reason: str
    source: str


_FP8_GEMM: Final = "vllm-project/vllm#17126 and #49363: products of H100 by rows, BF16 and FP8"

CONSTANTS: Final[Mapping[str, Constant]] = {
    "matmul_bandwidth": Constant(
        0.9, 0.75, 0.93, "of bandwidth",
        "DRAM refresh and turnarounds; the rest of the gap at one row is the start and the tail of a kernel",
        f"{_FP8_GEMM}: 132 MB in 46 us, 462 MB in 150 us at one row",
    ),
    "matmul_flops_16": Constant(
        0.77, 0.65, 0.8, "of the peak",
        "under full load the clock falls below the boost clock that sheets reckon with; tiles and waves are not full",
        "gist.github.com/Chillee/2ec89696db8b7ed1c24461159e325405: 780 of 989 TFLOP/s, the best shape of H100",
    ),
    "matmul_flops_8": Constant(
        0.55, 0.45, 0.7, "of the peak",
        "the same, and scales are applied outside the matrix units",
        f"{_FP8_GEMM}: 956 of 1979 TFLOP/s at 256 rows; within the range, set by serving points",
    ),
    "matmul_overlap": Constant(
        2.5, 2.0, 4.0, "exponent",
        "reading weights and multiplying overlap, but not at the ends of a kernel: times join as a p-norm, and p = inf "
        "would be the larger of both",
        f"{_FP8_GEMM}: 20.9 us at 128 rows and 23.7 us at 256, where reading takes 20 us",
    ),
    "experts_bandwidth": Constant(
        0.7, 0.5, 0.85, "of bandwidth",
        "many small matrices, each with a start and a tail, and unequal numbers of rows",
        "between matmul_bandwidth and what serving points of mixtures show",
    ),
    "experts_flops": Constant(
        0.4, 0.25, 0.6, "of the peak",
        "rows are padded to whole tiles for each expert",
        "between matmul_flops_8 and what serving points of mixtures show",
    ),
    "attention_bandwidth": Constant(
        0.85, 0.7, 0.95, "of bandwidth",
        "K and V are read in pages, by as many blocks of threads as there are requests and KV heads",
        "as matmul_bandwidth; serving points of large batches show 0.81 to 0.95",
    ),
    "attention_flops": Constant(
        0.55, 0.4, 0.65, "of the 16-bit peak",
        "softmax runs beside the matrix units, and half of the tiles on the diagonal are masked",
        "FlashAttention-3 (arXiv 2407.08608) figure 5, causal, head 128: 423 TFLOP/s at 1K, 521 at 2K, 602 at 8K",
    ),
    "rows_bandwidth": Constant(
        0.8, 0.7, 0.9, "of bandwidth",
        "streams of activations",
        "github.com/ai-dynamo/aiconfigurator@095f58a, systems/*.yaml: mem_bw_empirical_scaling_factor",
    ),
    "kernel_s": Constant(
        3e-6, 2e-6, 4e-6, "s",
        "start, first loads and tail of a kernel, also where a graph launches it",
        "github.com/ai-dynamo/aiconfigurator@095f58a, systems/*.yaml: mem_empirical_constant_latency; "
        "3 to 4 us beside reading in vllm-project/vllm#17126",
    ),
    "message_s": Constant(
        3e-6, 2e-6, 6e-6, "s",
        "a flag to every peer and back",
        "sgl-project/sglang#2904: 3.7 us for 512 bytes over 2 devices of H100, 4.8 over 4, 5.9 over 8",
    ),
    "message_device_s": Constant(
        0.4e-6, 0.2e-6, 0.6e-6, "s",
        "for each device that takes part",
        "sgl-project/sglang#2904, as message_s",
    ),
    "small_link": Constant(
        0.145, 0.1, 0.3, "of the link",
        "a few blocks of threads copy small messages: too few bytes are under way to fill the link",
        "sgl-project/sglang#2904: 1 MiB in 20, 31 and 34 us over 2, 4 and 8 devices of H100 are 65 of 450 GB/s",
    ),
    "large_link": Constant(
        0.82, 0.6, 0.9, "of the link",
        "protocol of the link",
        "NVIDIA/nccl-tests#212: 370 of 450 GB/s",
    ),
    "ring_s": Constant(
        20e-6, 12e-6, 30e-6, "s",
        "many steps, each waited for",
        "NCCL's latency for small messages: NVIDIA/nccl#1259, haohervchb/sglang-V100#2",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The constants' values, by the same names."""

    matmul_bandwidth: float
    matmul_flops_16: float
    matmul_flops_8: float
    matmul_overlap: float
    experts_bandwidth: float
    experts_flops: float
    attention_bandwidth: float
    attention_flops: float
    rows_bandwidth: float
    kernel_s: float
    message_s: float
    message_device_s: float
    small_link: float
    large_link: float
    ring_s: float


EXPECTED: Final = Efficiency(**{name: constant.value for name, constant in CONSTANTS.items()})
# The bare roofline, as textbooks have it: peaks are reached, whatever is not reading or arithmetic is free.
IDEAL: Final = Efficiency(1, 1, 1, math.inf, 1, 1, 1, 1, 1, 0, 0, 0, math.inf, math.inf, 0)
