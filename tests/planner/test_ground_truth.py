"""Figures that others published or measured, each through the public planner, within its tolerance."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvwise
from kvwise.hardware.devices import parse_placement
from kvwise.ledger.host import HostMemory, MemoryLimit
from kvwise.planner.plan import Plan
from kvwise.planner.policy import Policy
from kvwise.planner.presets import PRESETS, set_switches
from kvwise.planner.shape import plan_shape
from kvwise.units import GB, GiB, MiB
from planner.test_published_models import BY_ID

CHECKS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "ground_truth.json").read_text())["checks"]
HOST = HostMemory(2048 * GiB, (MemoryLimit("MemAvailable", 2048 * GiB),))

# Configs of models that are not in the catalogue: from their config.json on the hub.
LLAMA_405B = {
    "model_type": "llama", "hidden_size": 16384, "num_hidden_layers": 126, "intermediate_size": 53248,
    "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
QWEN_1_5_32B = {
    "model_type": "qwen2", "hidden_size": 5120, "num_hidden_layers": 64, "intermediate_size": 27392,
    "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064,
}  # fmt: skip
YI_1_5_34B = {
    "model_type": "llama", "hidden_size": 7168, "num_hidden_layers": 60, "intermediate_size": 20480,
    "num_attention_heads": 56, "num_key_value_heads": 8, "vocab_size": 64000,
}  # fmt: skip
QWEN_27B_HYBRID = {
    "model_type": "qwen3_5_text", "hidden_size": 5120, "num_hidden_layers": 64, "intermediate_size": 17408,
    "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "linear_num_value_heads": 48,
    "full_attention_interval": 4, "max_position_embeddings": 262144,
}  # fmt: skip
QWEN3_32B = {
    "model_type": "qwen3", "hidden_size": 5120, "num_hidden_layers": 64, "intermediate_size": 25600,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
}  # fmt: skip
GPT_OSS_120B = {**BY_ID["openai/gpt-oss-20b"]["config"], "num_hidden_layers": 36, "num_local_experts": 128,
                "layer_types": {"sliding_attention": 18, "full_attention": 18}}  # fmt: skip
LLAMA_8B = BY_ID["meta-llama/Llama-3.1-8B"]["config"]  # Llama 3 8B has the same shape
# llama.cpp's GGUF of the text half has a vocabulary of 262144, without the 64 rows for pictures.
GEMMA3_4B = {**BY_ID["google/gemma-3-4b-it"]["config"], "vocab_size": 262144}


def of(id: str, **asked: Any) -> Plan:
    return plan(BY_ID[id]["config"], **asked)


def plan(config: dict[str, Any], **asked: Any) -> Plan:
    return kvwise.plan(config, host=HOST, **asked)


def bits_per_weight(name: str) -> float:
    return plan_shape(params=2**20, layers=1, kv_heads=1, head_dim=1, weights=name, host=HOST).weight_bytes * 8 / 2**20


def preset(name: str, on: str, *switches: str) -> Policy:
    return set_switches(PRESETS[name](parse_placement(on)), switches)


def vllm_kv_pool(whole_blocks: bool) -> float:
    """On 39.50 GiB, with what vLLM reports as non-torch (0.10) and as peak of activations (9.37), in GiB."""
    reported = (f"workspace_bytes={round(0.10 * GiB)}", f"arena_bytes={round(9.37 * GiB)}")
    placed = plan(LLAMA_8B, on="a100-40gb", policy=preset("vllm", "a100-40gb", *reported)).placed
    assert placed is not None
    stage = placed.fullest
    free = stage.budget_bytes - stage.total_bytes + stage.row("kv_pool")
    block = stage.kv.bytes_per_block
    return (free // block * block if whole_blocks else free) / GiB


def vllm_blocks() -> int:
    policy = preset("vllm", "h100", "block_tokens=128")
    return policy.held_tokens(None, 15049) // policy.block_tokens


def gpt_oss_tokens() -> float:
    """Of 5.38 GiB, where windows are not told apart."""
    kv, policy = plan(GPT_OSS_120B).kv, preset("vllm", "h100", "evict_windows=no")
    return 5.38 * GiB / policy.held_bytes(kv, 2**20) * 2**20


def gemma3(row: str) -> float:
    """llama.cpp with 32768 cells: windowed layers hold their window and a micro-batch; logits of 512 rows. MiB."""
    placed = plan(GEMMA3_4B, on="rtx-4090", context=32768, policy=preset("llamacpp", "rtx-4090")).placed
    assert placed is not None
    return (placed.host_bytes if row == "host" else placed.fullest.row(row)) / MiB


def ratio_405() -> float:
    return plan(LLAMA_405B).kv_bytes_per_token / of("deepseek-ai/DeepSeek-V3").kv_bytes_per_token


# The book's figure for TPU v5e: the sheet says 819 GB/s.
V5E_BANDWIDTH = {"quiz": 8.1e11, "table": 8.2e11}
KV_13B = {"params": 13e9, "layers": 40, "kv_heads": 40, "head_dim": 128}


def decode_ms(where: str, bandwidth: float | None = None, **shape: Any) -> float:
    """Of one step at the end of the context, on the bare roofline."""
    placement = parse_placement(where)
    if bandwidth is not None:
        placement = replace(placement, device=replace(placement.device, bandwidth=bandwidth))
    p = plan_shape(**shape, host=HOST, on=placement, engine="roofline", output_tokens=1)
    assert p.latency is not None
    assert p.latency.decode.context == p.context
    return p.latency.decode.predicted_s * 1e3


def quiz(batch: int) -> float:
    return decode_ms(
        "v5e:16", V5E_BANDWIDTH["quiz"], params=30e9, kv_bytes_per_token=100_000, context=8192, batch=batch,
        weights="int8",
    )  # fmt: skip


def table_13b(batch: int) -> float:
    return decode_ms("v5e:8", V5E_BANDWIDTH["table"], **KV_13B, context=8192, batch=batch)


def evicted_tokens() -> float:
    """What a step computes where 32 requests of 8192 + 4096 tokens follow one another."""
    p = plan(LLAMA_8B, on="v5e:8", engine="roofline", context=8192 + 4096, output_tokens=4096, batch=32)
    assert p.latency is not None
    return p.latency.tokens_per_step


def ops_per_byte() -> float:
    p = of("meta-llama/Llama-2-7b-hf", on="a10", engine="roofline")
    assert p.latency is not None
    assert p.latency.ridge is not None
    return p.latency.ridge


COMPUTED: dict[str, Callable[[], float]] = {
    "kv-opt13b": lambda: of("facebook/opt-13b").kv_bytes_per_token,
    "kv-llama2-7b": lambda: of("meta-llama/Llama-2-7b-hf").kv_bytes_per_token,
    "kv-llama3-8b": lambda: plan(LLAMA_8B).kv_bytes_per_token,
    "kv-dsv3": lambda: of("deepseek-ai/DeepSeek-V3").kv_bytes_per_token,
    "kv-llama405b": lambda: plan(LLAMA_405B).kv_bytes_per_token,
    "kv-ratio-405": ratio_405,
    "kv-dsv32-1m": lambda: of("deepseek-ai/DeepSeek-V3.2", context=2**20).kv_bytes / GiB,
    "kv-dsv3-q8-32k": lambda: of("deepseek-ai/DeepSeek-V3", context=32768, kv_dtype="q8_0").kv_bytes / MiB,
    "kv2048-Mixtral-8x7B": lambda: of("mistralai/Mixtral-8x7B-v0.1", context=2048).kv_bytes / MiB,
    "kv2048-Llama-3-8B": lambda: plan(LLAMA_8B, context=2048).kv_bytes / MiB,
    "kv2048-Qwen1.5-32B": lambda: plan(QWEN_1_5_32B, context=2048).kv_bytes / MiB,
    "kv2048-Yi-1.5-34B": lambda: plan(YI_1_5_34B, context=2048).kv_bytes / MiB,
    "qwen38-27b-256k": lambda: plan(QWEN_27B_HYBRID, context=262144).kv_bytes / GiB,
    "gemma3-4b-fit-ctx": lambda: gemma3("kv_pool"),
    "gemma3-4b-fit-host": lambda: gemma3("host"),
    "gemma3-4b-fit-compute": lambda: gemma3("logits"),
    "vllm12330-kv": lambda: vllm_kv_pool(whole_blocks=True),
    "vllm12330-sum": lambda: vllm_kv_pool(whole_blocks=False),
    "vllm-w-qwen3-32b": lambda: plan(QWEN3_32B).weight_bytes / GiB,
    "vllm-w-qwen3-06b": lambda: of("Qwen/Qwen3-0.6B").weight_bytes / GiB,
    "vllm-blocks": vllm_blocks,
    "gptoss120b": gpt_oss_tokens,
    "l3-70b-q4km": lambda: 42.52 * GB * 8 / of("meta-llama/Llama-3.1-70B").parameters,
    "bpw-Q4_0": lambda: bits_per_weight("q4_0"),
    "bpw-Q5_0": lambda: bits_per_weight("q5_0"),
    "bpw-Q8_0": lambda: bits_per_weight("q8_0"),
    "bpw-Q3_K": lambda: bits_per_weight("q3_k"),
    "bpw-Q4_K": lambda: bits_per_weight("q4_k"),
    "bpw-Q6_K": lambda: bits_per_weight("q6_k"),
    "bpw-IQ4_XS": lambda: bits_per_weight("iq4_xs"),
    "awq-g128": lambda: bits_per_weight("int4_g128"),
    "jax-quiz-bs4": lambda: quiz(4),
    "jax-quiz-bs256": lambda: quiz(256),
    "jax-13b-B8": lambda: table_13b(8),
    "jax-13b-B16": lambda: table_13b(16),
    "jax-13b-B64": lambda: table_13b(64),
    "jax-13b-B240": lambda: table_13b(240),
    "jax-l3-70b-step": lambda: decode_ms(
        "v5e:8", V5E_BANDWIDTH["quiz"], params=70e9, kv_bytes_per_token=160_000, context=8192, batch=32, weights="int8"
    ),
    "jax-hbmfull": lambda: decode_ms(
        "v5e", V5E_BANDWIDTH["table"], params=8e9, kv_bytes_per_token=100_000, context=8000, batch=10, weights="int8"
    ),
    "jax-evict": evicted_tokens,
    "baseten-ops-byte": ops_per_byte,
    "baseten-tpot": lambda: decode_ms("a10", params=7e9, kv_bytes_per_token=2**19, context=2, weights="fp16"),
    "img-qwen3vl": lambda: kvwise.plan("qwen3-vl-8b", context=1, pictures=[(512, 512)], host=HOST).context - 1,
    "jax-l3-70b-mem": lambda: (
        plan_shape(
            params=70e9, kv_bytes_per_token=160_000, context=8192, batch=32, weights="int8", host=HOST
        ).total_bytes
    ),
}


def test_every_check_is_computed() -> None:
    assert len(CHECKS) == 44
    assert COMPUTED.keys() == {c["id"] for c in CHECKS}


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c["id"])
def test_the_planner_reproduces_what_was_published(check: dict[str, Any]) -> None:
    computed, published = COMPUTED[check["id"]](), check["published"]
    assert abs(computed - published) <= check["tolerance"] * published, f"{computed} {check['unit']}"
