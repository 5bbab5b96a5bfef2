"""What serving engines cost beside their kernels, and in which order they compute: a preset for each.

Figures are of recent versions (vLLM 0.11 to 0.18, TensorRT-LLM 1.0 to 1.3 with its PyTorch backend, SGLang 0.5). Knows
no model, no device and no memory.
"""

from __future__ import annotations

from typing import Final

from kvwise.errors import UsageError
from kvwise.frozen import dataclass
from kvwise.registry import Table


@dataclass(frozen=True, slots=True)
class EngineTiming:
    """Seconds are of a step.

    step_s: scheduling, inputs and sampling that the device waits for. request_s: likewise, for each request in it.
    eager_op_s: the host's time to launch one op where no graph does it, in steps with prompts: a step takes at least
    as long as its launches. attention_kernels, expert_kernels: of one attention (write K and V, attend, combine), of
    one layer of experts (choose, sort, two products, activate, combine). norms_heads_apart: norms of queries and keys
    are kernels of their own. quantizes_apart: so is making 8-bit activations. mixes_prefill: prompts are computed in
    steps with decodes; otherwise decodes wait. max_step_tokens: of one step.
    """

    name: str
    step_s: float
    request_s: float
    eager_op_s: float
    attention_kernels: int
    expert_kernels: int
    norms_heads_apart: bool
    quantizes_apart: bool
    mixes_prefill: bool
    max_step_tokens: int
    source: str


_ROWS: Final = (
    EngineTiming(
        "vllm", 1.0e-3, 12e-6, 12e-6, 3, 6, True, True, True, 8192,
        "step: the part of a decode step beside the forward pass; 12.7 us per request: openfabric-systems/simllm#204; "
        "8192 tokens: its default for servers on devices of 70 GiB and more",
    ),
    EngineTiming(
        "trtllm", 0.6e-3, 6e-6, 45e-6, 2, 6, False, True, True, 8192,
        "step: 580 us per iteration that the device waits, NVIDIA/TensorRT-LLM#13957; launches: serving points of "
        "short prompts on 8 devices take the same time whatever their length",
    ),
    EngineTiming(
        "sglang", 0.6e-3, 8e-6, 12e-6, 3, 6, True, True, False, 8192,
        "step: as trtllm, which overlaps scheduling likewise; prompts first: its scheduler's default",
    ),
    EngineTiming(
        "llamacpp", 0.0, 0.0, 0.0, 3, 6, True, False, True, 512,
        "nothing is known of what a step takes beside its kernels, so nothing is added; 512 tokens: n_ubatch",
    ),
)  # fmt: skip

# No engine at all: steps take what their bytes or their arithmetic take, as textbooks reckon.
ROOFLINE: Final = EngineTiming("roofline", 0.0, 0.0, 0.0, 0, 0, False, False, True, 2**31, "no engine")
ENGINES: Final[Table[EngineTiming]] = Table("engine", {row.name: row for row in (*_ROWS, ROOFLINE)}, UsageError)
DEFAULT_ENGINE: Final = "vllm"
