"""Memory on several devices: shares that sum to the whole, verdicts that hold, switches that do what they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import kvwise
from kvwise.errors import DoesNotFit, UsageError
from kvwise.hardware.devices import Placement, find_device
from kvwise.ledger.host import HostMemory, MemoryLimit
from kvwise.models import build_program
from kvwise.planner.placed import PlacedPlan, plan_placed
from kvwise.planner.plan import Plan
from kvwise.planner.policy import KVWISE, Policy
from kvwise.program.ir import Program, Role
from kvwise.spec.hf_config import spec_from_config
from kvwise.spec.kv import KV_TYPES, KVCacheSpec
from kvwise.units import GB, GiB, MiB
from planner.test_saved_families import CONFIGS

HOST = HostMemory(64 * GiB, (MemoryLimit("MemAvailable", 64 * GiB),))
BARE = replace(KVWISE, runtime_bytes=0, collective_bytes=0, reserve_fraction=0.0, reserve_bytes=0)

MODELS = [build_program(spec_from_config(config)) for config in CONFIGS if config["vocab_size"] > 100]
programs = st.sampled_from(MODELS)
placements = st.builds(Placement, st.just(find_device("a10g")), st.sampled_from([1, 2, 4]), st.integers(1, 3))


def plan(model: str, on: str, **asked: Any) -> Plan:
    return kvwise.plan(model, on=on, host=HOST, **asked)


def bf16_bytes(part: Program) -> int:
    return 2 * part.num_parameters


def placed(program: Program, on: Placement, policy: Policy = BARE, **asked: Any) -> PlacedPlan:
    """Weights and KV in 16 bits. A draw that can't be cut so is not one."""
    kv = KVCacheSpec(program.kv_layers, KV_TYPES["f16"], 16, program.states)
    try:
        return plan_placed(program, bf16_bytes, kv, on, policy, **asked)
    except UsageError:
        assume(False)
        raise


@given(programs, placements, st.integers(1, 500), st.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_devices_together_hold_the_whole_and_what_is_copied(
    program: Program, on: Placement, context: int, batch: int
) -> None:
    ranks = on.tensor_parallel
    alone = placed(program, Placement(on.device), context=context, batch=batch).fullest
    stages = placed(program, on, context=context, batch=batch).stages
    assert len(stages) == on.pipeline_parallel
    assert sum(stage.num_layers for stage in stages) == alone.num_layers
    for name in ("weights", "kv_pool", "states"):
        together = ranks * sum(stage.row(name) for stage in stages)
        assert alone.row(name) <= together
    assert sum(stage.row("kv_pool") for stage in stages) <= alone.row("kv_pool")
    assert sum(stage.row("states") for stage in stages) <= alone.row("states")
    for stage in stages:
        assert stage.total_bytes == sum(int(row.predicted or 0) for row in stage.rows)
        assert min(int(row.predicted or 0) for row in stage.rows) > 0
        assert stage.free_bytes + stage.total_bytes + stage.reserve_bytes == stage.budget_bytes


@given(programs, st.sampled_from([1, 2, 4]), st.integers(1, 400), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_more_devices_hold_no_more_each(program: Program, ranks: int, context: int, batch: int) -> None:
    """But for padding of the vocabulary, and a gathered slot beside its shard: both are much of a small model."""
    few, many = (
        placed(program, Placement(find_device("h100"), n), context=context, batch=batch).fullest
        for n in (ranks, 2 * ranks)
    )
    tables = sum(1 for w in program.weights.values() if w.role is Role.EMBEDDING or w.name == "lm_head.weight")
    padding = {"weights": 2 * tables * 64 * max(w.shape[-1] for w in program.weights.values())}
    for name in ("weights", "kv_pool", "states"):
        assert many.row(name) <= few.row(name) + padding.get(name, 0)


@given(programs, placements, st.integers(1, 300), st.integers(1, 6), st.integers(0, 300), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_more_context_and_more_requests_never_take_less(
    program: Program, on: Placement, context: int, batch: int, longer: int, wider: int
) -> None:
    small = placed(program, on, KVWISE, context=context, batch=batch)
    large = placed(program, on, KVWISE, context=context + longer, batch=batch + wider)
    for a, b in zip(small.stages, large.stages, strict=True):
        assert a.total_bytes <= b.total_bytes
        assert a.free_bytes >= b.free_bytes


@given(programs, placements, st.integers(16, 300), st.integers(1, 200), st.sampled_from([BARE, KVWISE]))
@settings(max_examples=60, deadline=None)
def test_as_many_requests_as_there_is_room_for_fit_and_one_more_does_not(
    program: Program, on: Placement, context: int, kib: int, policy: Policy
) -> None:
    """In steps that do not grow with the requests, and with logits of a fixed number of rows."""
    policy = replace(policy, step_tokens=4096, logits_rows=1)
    first = placed(program, on, policy, context=context, batch=300).fullest
    limit = first.total_bytes + first.reserve_bytes + kib * 1024
    most = placed(program, on, policy, context=context, batch=300, memory_limit=limit).max_requests
    assume(300 <= most < 4096)
    for more, fits in ((0, True), (1, False)):
        assert placed(program, on, policy, context=context, batch=most + more, memory_limit=limit).fits is fits


def test_llama_70b_on_four_h100s_is_a_quarter_each() -> None:
    p = plan("llama-3.1-70b", "h100:4", context=8192, batch=4)
    assert p.placed is not None
    (stage,) = p.placed.stages
    norms = (2 * 80 + 1) * 8192 * 2
    assert stage.row("weights") == (p.weight_bytes - norms) // 4 + norms
    assert stage.row("kv_pool") == 4 * 8192 * 327_680 // 4
    assert stage.budget_bytes == find_device("h100").memory_usable_bytes
    assert p.fits
    assert not plan("llama-3.1-70b", "h100").fits


@pytest.mark.parametrize(("ranks", "heads_each"), [(2, 4), (8, 1), (16, 1), (32, 1)])
def test_kv_heads_are_copied_where_there_are_fewer_than_devices(ranks: int, heads_each: int) -> None:
    p = plan("llama-3.1-70b", f"h100:{ranks}")
    assert p.placed is not None
    assert p.placed.fullest.kv.bytes_per_token == 80 * 2 * heads_each * 128 * 2


def test_a_latent_is_whole_on_every_device() -> None:
    alone = kvwise.plan("deepseek-v3", host=HOST)
    for ranks in (1, 8):
        p = plan("deepseek-v3", f"h200:{ranks}")
        assert p.placed is not None
        assert p.placed.fullest.kv.bytes_per_token == alone.kv_bytes_per_token


def test_a_pipelines_fullest_stage_decides() -> None:
    p = plan("llama-3.1-70b", "a100:pp3")
    assert p.placed is not None
    assert [stage.num_layers for stage in p.placed.stages] == [27, 27, 26]
    embedding = 128_256 * 8192 * 2
    weights = [stage.row("weights") for stage in p.placed.stages]
    assert weights[0] - weights[1] == embedding
    assert p.placed.fullest is p.placed.stages[0]
    assert p.total_bytes == p.placed.stages[0].total_bytes


def test_windows_are_held_whole_unless_the_policy_evicts_them() -> None:
    held = {
        evict: plan("gemma-3-27b", "h100", context=32768, policy=replace(KVWISE, evict_windows=evict)).placed
        for evict in (False, True)
    }
    assert held[True] is not None
    assert held[False] is not None
    kv = held[True].fullest.kv
    windowed = sum(kv.layer_bytes_per_token(i) for i, layer in enumerate(kv.layers) if layer.window)
    saved = held[False].fullest.row("kv_pool") - held[True].fullest.row("kv_pool")
    assert saved == windowed * (32768 - 1024 - KVWISE.step_tokens)


@pytest.mark.parametrize(
    ("change", "row", "expected"),
    [
        ({"runtime_bytes": 7 * MiB}, "runtime", 7 * MiB),
        ({"graph_bytes": 5 * MiB}, "graphs", 5 * MiB),
        ({"collective_bytes": 3 * MiB}, "collectives", 3 * MiB),
        ({"logits_rows": 9}, "logits", 9 * 128_256 * 4),
        ({"logits_rows": 9, "logits_bytes": 2}, "logits", 9 * 128_256 * 2),
        ({"block_tokens": 128}, "kv_pool", 1024 * 131_072 // 2),
        ({"block_tokens": 1}, "kv_pool", 1000 * 131_072 // 2),
    ],
)
def test_a_switch_changes_its_row(change: dict[str, Any], row: str, expected: int) -> None:
    p = plan("llama-3.1-8b", "l4:2", context=1000, policy=replace(KVWISE, **change))
    assert p.placed is not None
    assert p.placed.fullest.row(row) == expected


def test_a_fraction_of_memory_and_a_limit_both_bound_the_budget() -> None:
    usable = find_device("l4").memory_usable_bytes or 0
    assert plan("llama-3.1-8b", "l4", policy=replace(KVWISE, memory_fraction=0.5)).budget_bytes == usable // 2
    assert plan("llama-3.1-8b", "l4", memory_limit=10 * GB).budget_bytes == 10 * GB
    assert plan("llama-3.1-8b", "l4", memory_limit=10 * GB).to_json()["available_source"] == "limit asked about"


def test_a_cpu_needs_to_be_told_its_memory() -> None:
    with pytest.raises(UsageError, match="--memory"):
        plan("llama-3.1-8b", "epyc-9654")
    assert plan("llama-3.1-8b", "epyc-9654", memory_limit=256 * GiB).fits


def test_refusal_says_the_arithmetic() -> None:
    p = plan("deepseek-v3", "h100:8")
    with pytest.raises(DoesNotFit, match=r"8 x H100 SXM5 80GB needs .* weights .* in reserve"):
        p.check_fits()


def test_what_can_not_be_cut_so_is_refused() -> None:
    with pytest.raises(UsageError, match="71 query heads"):
        plan("falcon-7b", "a100:2")
    with pytest.raises(UsageError, match="layers"):
        plan("falcon-7b", "a100:pp64")


def test_what_no_source_says_of_speed_leaves_the_memory() -> None:
    p = plan("gpt2", "a10g:tp2,pp6")
    assert p.latency is None
    assert any("a link between 12 x A10G" in note for note in p.notes)
    assert p.fits
