"""Other engines' own arithmetic and scheduling, as policies; and single switches that a user sets.

What an engine decides by the device it finds is decided here by the device's figures. Every constant has its source in
`Policy.sources`. Knows no model.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from kvwise.backends.price.engines import DEFAULT_ENGINE, ENGINES
from kvwise.errors import UsageError
from kvwise.hardware.devices import Placement
from kvwise.planner.policy import KVWISE, Policy
from kvwise.registry import Table
from kvwise.units import GiB, MiB

_CONTEXT: Final = {name: KVWISE.sources[name] for name in ("runtime_bytes", "collective_bytes")}
_LARGE_DEVICE: Final = 70 * GiB


def vllm_policy(placement: Placement) -> Policy:
    """vLLM's V1 engine as a server: a share of all memory, less what a profile run of the largest step peaks at."""
    device = placement.device
    large = (device.memory_usable_bytes or 0) >= _LARGE_DEVICE and "A100" not in device.name
    step_tokens, max_requests = (8192, 1024) if large else (2048, 256)
    return Policy(
        "vllm", "vllm", memory_fraction=0.9, beside=("runtime", "collectives", "graphs"), reserve_fraction=0.0,
        reserve_bytes=0, workspace_bytes=round(0.10 * GiB), graph_bytes=round(0.6 * GiB), block_tokens=16,
        evict_windows=True, keep_step_tokens=False, straddle_blocks=1, step_tokens=step_tokens,
        max_requests=max_requests, full_step=True, activation_bytes=2, logits_rows=max_requests,
        sources={
            **_CONTEXT,
            "memory_fraction": "gpu_memory_utilization, of the total: vllm/v1/worker/gpu_worker.py, requested_memory",
            "beside": "the profile's baseline is taken after the context and the group of devices are there "
            "(gpu_worker.py, init_snapshot); graphs are recorded after the pool is sized",
            "workspace_bytes": "what is not PyTorch's beside that: 0.10 GiB, vllm-project/vllm#12330",
            "graph_bytes": "logs of capturing in 2025 say 0.31 to 0.96 GiB; between them",
            "block_tokens": "vllm/config, CacheConfig.block_size on CUDA",
            "evict_windows": "vllm/v1/core/kv_cache_coordinator.py, groups of layers by window",
            "straddle_blocks": "vllm/v1/kv_cache_interface.py, SlidingWindowSpec: a window may begin inside a block",
            "step_tokens": "vllm/engine/arg_utils.py, get_batch_defaults: a server on 70 GiB and more, no A100; others",
            "max_requests": "the same table, max_num_seqs",
            "logits_rows": "the profile run samples for max_num_seqs requests in float32",
        },
    )  # fmt: skip


def trtllm_policy(placement: Placement) -> Policy:
    """TensorRT-LLM with its PyTorch backend: a share of what is free once weights and a dry run have taken theirs."""
    return Policy(
        "trtllm", "trtllm", pool_fraction=0.9, reserve_fraction=0.0, reserve_bytes=0, block_tokens=32,
        step_tokens=8192, max_requests=2048, full_step=True, activation_bytes=2, logits_rows=2048,
        sources={
            **_CONTEXT,
            "pool_fraction": "free_gpu_memory_fraction: tensorrt_llm/_torch/pyexecutor/resource_manager.py, "
            "calculate_max_num_blocks, of the free memory after a dry run",
            "block_tokens": "tensorrt_llm/llmapi/llm_args.py, KvCacheConfig.tokens_per_block (64 in engines built "
            "before its PyTorch backend)",
            "evict_windows": "no: windows are kept only where max_attention_window is given",
            "step_tokens": "tensorrt_llm/builder.py, BuildConfig.max_num_tokens",
            "max_requests": "the same, max_batch_size",
        },
    )  # fmt: skip


def sglang_policy(placement: Placement) -> Policy:
    """SGLang: weights and pool in a static share of what is free before loading, all else beside it."""
    device = placement.device
    memory_mib = (device.memory_reported_bytes or device.memory_usable_bytes or 0) / MiB
    step_tokens, graph_requests = _sglang_sizes(memory_mib, placement.tensor_parallel)
    reserved_mib = 512 + 1.5 * max(step_tokens, 2048) + 2 * graph_requests + placement.num_devices / 8 * 1024
    if memory_mib > 60 * 1024:
        reserved_mib = max(reserved_mib, 10 * 1024)
    fraction = round((memory_mib - reserved_mib) / memory_mib, 3) if memory_mib > reserved_mib else 0.88
    return Policy(
        "sglang", "sglang", memory_fraction=fraction, fraction_of_free=True, beside=("arena", "logits", "graphs"),
        reserve_fraction=0.0, reserve_bytes=0, graph_bytes=2 * graph_requests * MiB, block_tokens=1,
        step_tokens=step_tokens, max_requests=2048, full_step=True, activation_bytes=2,
        sources={
            **_CONTEXT,
            "memory_fraction": "mem_fraction_static: python/sglang/srt/server_args.py, _handle_gpu_memory_settings",
            "fraction_of_free": "model_runner_kv_cache_mixin.py, _profile_available_bytes: of the memory that is free "
            "once the group of devices is there",
            "beside": "the same: activations and graphs are in what the share leaves",
            "graph_bytes": "2 MiB for each request of cuda_graph_max_bs, as _handle_gpu_memory_settings reckons",
            "block_tokens": "server_args.py, page_size",
            "evict_windows": "no: an upper bound where it has a pool of its own for windows (swa_full_tokens_ratio)",
            "step_tokens": "chunked_prefill_size by the device's memory, _handle_gpu_memory_settings",
            "max_requests": "max_running_requests: the least that its runner takes by itself",
        },
    )  # fmt: skip


def _sglang_sizes(memory_mib: float, ranks: int) -> tuple[int, int]:
    """(chunked_prefill_size, cuda_graph_max_bs) of a device with so much memory."""
    rows = (
        (20 * 1024, 2048, (8, 8)), (35 * 1024, 2048, (24, 80)), (60 * 1024, 4096, (32, 160)),
        (160 * 1024, 8192, (256, 512)), (math.inf, 16384, (512, 512)),
    )  # fmt: skip
    return next((chunk, graphs[ranks >= 4]) for most, chunk, graphs in rows if memory_mib < most)


def llamacpp_policy(placement: Placement) -> Policy:
    """llama.cpp with all layers on the device: one run of cells for each request, made before the first comes."""
    return Policy(
        "llamacpp", "llamacpp", reserve_fraction=0.0, reserve_bytes=1024 * MiB, embedding_on_host=True,
        block_tokens=256, evict_windows=True, keep_step_tokens=True, step_tokens=512, max_requests=4, full_step=True,
        activation_bytes=4, logits_rows=512,
        sources={
            **_CONTEXT,
            "reserve_bytes": "common/common.h, fit_params_target: 1024 MiB free on each device",
            "embedding_on_host": "src/llama-model.cpp: the input layer's tensors stay there; a tied head is a copy",
            "block_tokens": "src/llama-context.cpp: n_ctx, and each sequence's share, in steps of 256 cells",
            "evict_windows": "src/llama-kv-cache-iswa.cpp: n_swa + n_ubatch cells in steps of 256",
            "step_tokens": "common/common.h, n_ubatch",
            "max_requests": "tools/server: 4 slots by default",
            "logits_rows": "n_ubatch rows of the vocabulary in float32: its compute buffer is reserved for them",
        },
    )  # fmt: skip


PRESETS: Final[Table[Callable[[Placement], Policy]]] = Table(
    "preset",
    {
        "kvwise": lambda _placement: KVWISE,
        "vllm": vllm_policy,
        "trtllm": trtllm_policy,
        "sglang": sglang_policy,
        "llamacpp": llamacpp_policy,
    },
    UsageError,
)

_ROWS: Final = ("arena", "logits", "runtime", "graphs", "collectives", "workspaces")
_LEAST: Final[Mapping[str, int]] = {"block_tokens": 1, "step_tokens": 1, "max_requests": 1, "logits_rows": 1}
_MOST: Final = 2**50
_MOST_BLOCK: Final = 2**20
_FIXED: Final = ("name", "sources")


def switches() -> tuple[str, ...]:
    """Names that `set_switches` takes."""
    return tuple(f.name for f in fields(Policy) if f.name not in _FIXED)


def set_switches(policy: Policy, texts: Iterable[str]) -> Policy:
    """`policy` with switches such as "block_tokens=32" set. Raises UsageError for names and values that are none."""
    changed: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in switches():
            near = difflib.get_close_matches(name, switches(), 3, 0.5)
            some = ", ".join(near or switches())
            raise UsageError(f"no switch {text!r}", expected=f"NAME=VALUE with a name such as {some}")
        changed[name] = _read(name, value.strip())
    if not changed:
        return policy
    if "step_tokens" in changed and not policy.engine:
        changed.setdefault("engine", DEFAULT_ENGINE)
    sources = {**policy.sources, **dict.fromkeys(changed, "set by hand")}
    return replace(policy, name=f"{policy.name}, changed", sources=sources, **changed)


def _read(name: str, text: str) -> object:
    """The value of switch `name`, by the type of its default."""
    kind = str(next(f.type for f in fields(Policy) if f.name == name))
    if kind == "bool":
        return _one_of(
            name, text.lower(), {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        )
    if kind == "str":
        return _one_of(name, text, {engine: engine for engine in ENGINES})
    if kind.startswith("tuple"):
        return tuple(_one_of(name, part.strip(), {row: row for row in _ROWS}) for part in text.split(",") if part)
    if kind.endswith("None") and text.lower() == "none":
        return None
    if kind == "float":
        return _fraction(name, text)
    return _whole(name, text)


def _one_of(name: str, text: str, values: Mapping[str, Any]) -> Any:
    if text not in values:
        raise UsageError(f"{name} is {text!r}", expected=f"one of {', '.join(values)}")
    return values[text]


def _fraction(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:  # false for NaN
        raise UsageError(f"{name} is {text!r}", expected="a number from 0 to 1")
    return value


def _whole(name: str, text: str) -> int:
    least, most = (
        _LEAST.get(name, 0),
        _MOST_BLOCK if name.endswith(("_tokens", "_rows", "_blocks", "_requests")) else _MOST,
    )
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise UsageError(f"{name} is {text!r}", expected=f"an integer, {least:,} to {most:,}")
    return int(text)
