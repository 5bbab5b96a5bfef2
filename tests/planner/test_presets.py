"""Other engines' arithmetic as policies: what they decide by the device, what each switch takes, what is refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

import kvwise
from kvwise.errors import UsageError
from kvwise.hardware.devices import parse_placement
from kvwise.ledger.host import HostMemory, MemoryLimit
from kvwise.planner.placed import Stage
from kvwise.planner.policy import KVWISE, Policy
from kvwise.planner.presets import PRESETS, set_switches, switches
from kvwise.units import GiB

HOST = HostMemory(64 * GiB, (MemoryLimit("MemAvailable", 64 * GiB),))


def preset(name: str, on: str) -> Policy:
    return PRESETS[name](parse_placement(on))


def stage(name: str, on: str, model: str = "llama-3.1-8b", **asked: Any) -> Stage:
    placed = kvwise.plan(model, on=on, policy=preset(name, on), host=HOST, **asked).placed
    assert placed is not None
    return placed.fullest


def test_vllm_takes_larger_steps_on_large_devices_but_for_a100() -> None:
    """vllm/engine/arg_utils.py, get_batch_defaults."""
    sizes = {
        on: (preset("vllm", on).step_tokens, preset("vllm", on).max_requests) for on in ("h100", "a100-80gb", "l4")
    }
    assert sizes == {"h100": (8192, 1024), "a100-80gb": (2048, 256), "l4": (2048, 256)}


def test_vllm_holds_a_full_step_and_leaves_runtime_and_graphs_to_the_tenth() -> None:
    device = stage("vllm", "h100", context=100)
    usable = parse_placement("h100").device.memory_usable_bytes or 0
    assert device.budget_bytes - device.row("runtime") - device.row("graphs") == int(0.9 * usable)
    assert device.row("arena") == stage("vllm", "h100", context=100_000).row("arena")
    assert device.row("logits") == 1024 * 128_256 * 4


def test_vllm_counts_a_window_and_the_block_that_it_straddles() -> None:
    """Gemma 3 4B: 5 whole layers of 4096 B per token, 29 of a window of 1024 tokens."""
    held = stage("vllm", "h100", "gemma-3-4b", context=32768).row("kv_pool")
    assert held == 5 * 4096 * 32768 + 29 * 4096 * (1024 + 16)


def test_tensorrt_llm_takes_nine_tenths_of_what_is_free() -> None:
    device = stage("trtllm", "h100", context=1000)
    usable = parse_placement("h100").device.memory_usable_bytes or 0
    others = device.total_bytes - device.row("kv_pool")
    assert device.budget_bytes == others + int(0.9 * (usable - others))
    assert device.row("kv_pool") == 1024 * 131_072


def test_sglang_reserves_ten_gib_of_a_large_device() -> None:
    """server_args.py: max(512 + 1.5 * 8192 + 2 * 256 + 1024 / 8, 10240) MiB of 81559."""
    policy = preset("sglang", "h100")
    reserved = 512 + 1.5 * 8192 + 2 * 256 + 128
    assert policy.memory_fraction == round((81559 - reserved) / 81559, 3)
    assert (policy.step_tokens, policy.block_tokens) == (8192, 1)
    assert preset("sglang", "l4").step_tokens == 2048
    assert preset("sglang", "b200").step_tokens == 16384


def test_sglang_counts_weights_and_pool_against_its_share_and_nothing_else() -> None:
    device = stage("sglang", "h100", context=1000)
    usable = parse_placement("h100").device.memory_usable_bytes or 0
    share = int(preset("sglang", "h100").memory_fraction * (usable - device.row("runtime")))
    beside = sum(device.row(name) for name in ("runtime", "arena", "logits", "graphs"))
    assert device.budget_bytes == min(usable, share + beside)
    assert device.row("kv_pool") == 1000 * 131_072


def test_llamacpp_keeps_the_embedding_on_the_host_unless_the_head_is_tied_to_it() -> None:
    plans = {model: kvwise.plan(model, on="l4", policy=preset("llamacpp", "l4"), host=HOST)
             for model in ("llama-3.1-8b", "llama-3.2-1b")}  # fmt: skip
    on_host = {"llama-3.1-8b": 128_256 * 4096 * 2, "llama-3.2-1b": 128_256 * 2048 * 2}
    for model, plan in plans.items():
        assert plan.placed is not None
        assert plan.placed.host_bytes == on_host[model]
        left_out = on_host[model] if model == "llama-3.1-8b" else 0
        assert plan.placed.fullest.row("weights") == plan.weight_bytes - left_out


def test_a_preset_says_whose_steps_are_timed_and_how_large_they_are() -> None:
    plan = kvwise.plan("llama-3.1-8b", on="l4", policy=preset("sglang", "l4"), host=HOST, context=4096)
    assert plan.latency is not None
    assert plan.latency.engine == "sglang"
    assert plan.latency.prefill.tokens == 2048


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_constant_that_differs_from_ours_names_its_source(name: str) -> None:
    policy = preset(name, "h100")
    own = {"name", "engine", "sources", "reserve_fraction", "activation_bytes", "full_step"}
    differing = {f.name for f in fields(Policy) if getattr(policy, f.name) != getattr(KVWISE, f.name)} - own
    said = set(policy.sources)
    told_elsewhere = {"reserve_bytes", "keep_step_tokens", "logits_rows"}
    assert differing - told_elsewhere <= said


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("block_tokens=32", "block_tokens", 32),
        ("evict-windows=yes", "evict_windows", True),
        ("memory_fraction=0.85", "memory_fraction", 0.85),
        ("logits_rows=none", "logits_rows", None),
        ("arena_bytes=1000", "arena_bytes", 1000),
        ("beside=arena,logits", "beside", ("arena", "logits")),
        ("engine=trtllm", "engine", "trtllm"),
    ],
)
def test_a_switch_is_set_by_its_name(text: str, name: str, value: object) -> None:
    policy = set_switches(KVWISE, [text])
    assert getattr(policy, name) == value
    assert policy.name == "kvwise, changed"
    assert policy.sources[name] == "set by hand"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("block_token=32", "block_tokens"),
        ("block_tokens", "NAME=VALUE"),
        ("name=mine", "NAME=VALUE"),
        ("block_tokens=0", "1 to"),
        ("block_tokens=1e3", "an integer"),
        ("block_tokens=" + "9" * 30, "an integer"),
        ("memory_fraction=1.1", "from 0 to 1"),
        ("memory_fraction=nan", "from 0 to 1"),
        ("evict_windows=maybe", "one of"),
        ("beside=weights", "one of"),
        ("engine=none", "one of"),
    ],
)
def test_a_switch_that_is_none_is_refused_with_what_would_be(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        set_switches(KVWISE, [text])
    assert words in str(refused.value)


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="llamacpp, sglang, trtllm, vllm"):
        PRESETS["ollama"]


def test_every_switch_can_be_set() -> None:
    for name in switches():
        value = getattr(KVWISE, name)
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        if name != "engine":  # "" is no engine's name
            assert getattr(set_switches(KVWISE, [f"{name}={text}"]), name) == value


def test_more_requests_than_an_engine_runs_at_once_are_noted() -> None:
    def notes(batch: int) -> str:
        plan = kvwise.plan("llama-3.1-8b", on="l4", policy=preset("vllm", "l4"), host=HOST, context=64, batch=batch)
        return "; ".join(plan.notes)

    assert "at most 256 requests" in notes(257)
    assert "at most" not in notes(256)
