"""Whole plans of random models under random policies: sums of their parts, nothing negative, monotone; and a refusal
that opens a file's header and never a weight."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import kvwise
from kvwise.errors import DoesNotFit, UsageError
from kvwise.hardware.devices import Placement, find_device
from kvwise.ledger.host import HostMemory, MemoryLimit
from kvwise.planner.explain import explain
from kvwise.planner.placed import vary_placed
from kvwise.planner.plan import Plan
from kvwise.planner.policy import KVWISE, Policy
from kvwise.planner.presets import PRESETS
from kvwise.units import GiB
from planner.test_saved_families import CONFIGS

HOST = HostMemory(64 * GiB, (MemoryLimit("MemAvailable", 64 * GiB),))
GOLDENS = Path(__file__).parents[1] / "goldens" / "hf"

configs = st.sampled_from([config for config in CONFIGS if config["vocab_size"] > 100])
devices = st.sampled_from(["h100", "l4", "a100-80gb", "b200"]).map(find_device)
placements = st.builds(Placement, devices, st.sampled_from([1, 2]), st.sampled_from([1, 2]))
presets = st.sampled_from(list(PRESETS))
contexts, batches = st.integers(1, 400), st.integers(1, 12)


def plan(config: Any, on: Placement, policy: Policy, **asked: Any) -> Plan:
    """A draw that can't be cut so is not one."""
    try:
        return kvwise.plan(config, on=on, policy=policy, host=HOST, **asked)
    except UsageError:
        assume(False)
        raise


@given(configs, placements, presets, contexts, batches)
@settings(max_examples=20, deadline=None)
def test_a_plan_is_the_sum_of_its_parts_and_none_is_negative(
    config: Any, on: Placement, preset: str, context: int, batch: int
) -> None:
    found = plan(config, on, PRESETS[preset](on), context=context, batch=batch)
    figures = json.loads(json.dumps(found.to_json()))
    for stage in figures["placed"]["stages"]:
        assert stage["total_bytes"] == sum(row["predicted"] for row in stage["ledger"])
        assert stage["free_bytes"] == stage["budget_bytes"] - stage["total_bytes"] - stage["reserve_bytes"]
        assert stage["fits"] == (stage["free_bytes"] >= 0)
        assert min(stage["budget_bytes"], stage["reserve_bytes"], stage["max_requests"]) >= 0
        assert all(row["predicted"] > 0 and row["unit"] == "B" for row in stage["ledger"])
        assert stage["budget_bytes"] <= (on.device.memory_usable_bytes or 0)
    assert figures["fits"] == all(stage["fits"] for stage in figures["placed"]["stages"])
    latency = found.latency
    if latency is not None and latency.tpot_s is not None:
        assert 0 < latency.ttft_s.low <= latency.ttft_s.value <= latency.ttft_s.high
        assert 0 < latency.tpot_s.low <= latency.tpot_s.value <= latency.tpot_s.high
        response = latency.ttft_s.value + (latency.output_tokens - 1) * latency.tpot_s.value
        assert latency.response_s.value == pytest.approx(response)
        for regime in (latency.prefill, latency.decode):
            parts = sum(share.predicted_s for share in regime.shares)
            assert parts + regime.overhead_s == pytest.approx(regime.predicted_s)
    assert all(formula.value for formula in explain(found))


@given(configs, placements, presets, contexts, batches, st.integers(0, 300), st.integers(0, 6))
@settings(max_examples=12, deadline=None)
def test_more_tokens_or_requests_never_take_less_and_never_fit_where_fewer_do_not(
    config: Any, on: Placement, preset: str, context: int, batch: int, longer: int, wider: int
) -> None:
    policy = PRESETS[preset](on)
    small = plan(config, on, policy, context=context, batch=batch)
    large = plan(config, on, policy, context=context + longer, batch=batch + wider)
    assert small.kv_bytes <= large.kv_bytes
    assert small.total_bytes <= large.total_bytes
    assert small.fits or not large.fits
    assert small.placed is not None
    assert large.placed is not None
    for a, b in zip(small.placed.stages, large.placed.stages, strict=True):
        assert a.row("kv_pool") <= b.row("kv_pool")
        assert a.row("states") <= b.row("states")
        assert a.row("weights") == b.row("weights")


@given(configs, placements, contexts, st.sampled_from([1, 2, 16, 64, 256]), st.floats(0.1, 1.0))
@settings(max_examples=12, deadline=None)
def test_coarser_blocks_and_smaller_shares_never_hold_more_requests(
    config: Any, on: Placement, context: int, block: int, share: float
) -> None:
    placed = plan(config, on, KVWISE, context=context).placed
    assert placed is not None

    def room(**switches: Any) -> int:
        return vary_placed(placed, policy=replace(KVWISE, **switches)).max_requests

    assert room(block_tokens=2 * block) <= room(block_tokens=block)
    assert room(memory_fraction=share) <= room()
    assert room(pool_fraction=share) <= room()
    assert room(evict_windows=True) >= room()


def test_a_refusal_reads_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the file only its header is read, by the one function that reads checked files' bytes."""
    folder = GOLDENS / "llama"
    (file,) = folder.glob("*.safetensors")
    with file.open("rb") as opened:
        header = 8 + int.from_bytes(opened.read(8), "little")
    reached: list[int] = []
    pread, preadv = os.pread, os.preadv

    def spy(descriptor: int, count: int, offset: int) -> bytes:
        reached.append(offset + count)
        return pread(descriptor, count, offset)

    def spy_vectors(descriptor: int, buffers: Any, offset: int, *flags: int) -> int:
        reached.append(offset + sum(len(buffer) for buffer in buffers))
        return preadv(descriptor, buffers, offset, *flags)

    monkeypatch.setattr(os, "pread", spy)
    monkeypatch.setattr(os, "preadv", spy_vectors)
    with pytest.raises(DoesNotFit):
        kvwise.plan(folder, memory_limit=2**20, host=HOST).check_fits()
    assert reached
    assert max(reached) <= header < file.stat().st_size
