"""Files as transformers writes them, of every family that is counted only: nothing is left unexplained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvwise
from kvwise.ledger.host import HostMemory, MemoryLimit
from kvwise.planner.plan import Plan
from kvwise.planner.stored import Part
from kvwise.units import GiB
from planner.safetensors_headers import Tensors, stored_bytes, write_headers

GOLDENS = Path(__file__).parents[1] / "goldens"
SAVED: list[dict[str, Any]] = json.loads((GOLDENS / "hf_headers.json").read_text())["records"]
CONFIGS: list[dict[str, Any]] = [r["config"] for r in json.loads((GOLDENS / "hf_counts.json").read_text())["records"]]
HOST = HostMemory(64 * GiB, (MemoryLimit("MemAvailable", 64 * GiB),))


def plan(config: dict[str, Any], **asked: Any) -> Plan:
    return kvwise.plan(config, host=HOST, **asked)


@pytest.mark.parametrize("saved", SAVED, ids=lambda r: r["config"]["model_type"])
def test_a_saved_model_is_the_formula_and_its_buffers(saved: dict[str, Any], tmp_path: Path) -> None:
    tensors: Tensors = {name: (dtype, tuple(shape)) for name, (dtype, shape) in saved["tensors"].items()}
    p = kvwise.plan(str(write_headers(tmp_path, saved["config"], tensors)), host=HOST)
    assert p.source == "safetensors"
    assert p.stored is not None
    assert p.stored.unexplained == 0
    assert {why for why, _ in p.stored.differences()} <= {Part.BUFFERS.value}
    assert p.stored.file_bytes == stored_bytes(tensors)
    assert p.weight_bytes == 2 * p.parameters


def test_every_counted_family_is_saved() -> None:
    assert {r["config"]["model_type"] for r in SAVED} == {c["model_type"] for c in CONFIGS}


@pytest.mark.parametrize("saved", SAVED, ids=lambda r: r["config"]["model_type"])
def test_a_config_saved_by_transformers_5_means_what_the_one_it_was_made_from_means(saved: dict[str, Any]) -> None:
    made_from = next(c for c in reversed(CONFIGS) if c["model_type"] == saved["config"]["model_type"])
    again, first = plan(saved["config"]), plan(made_from)
    assert again.parameters == first.parameters
    assert again.kv == first.kv


@given(st.sampled_from(CONFIGS), st.integers(1, 2000), st.integers(1, 9), st.sampled_from(["f32", "f16", "bf16"]))
@settings(max_examples=80, deadline=None)
def test_sums_equal_parts_and_nothing_is_negative(config: dict[str, Any], context: int, batch: int, kv: str) -> None:
    p = plan(config, context=context, batch=batch, kv_dtype=kv)
    rows = {row.name: int(row.predicted or 0) for row in p.rows}
    assert p.total_bytes == sum(rows.values())
    assert min(rows.values()) > 0
    assert p.kv_bytes == batch * context * p.kv_bytes_per_token
    assert (
        p.kv_bytes + p.index_bytes
        <= rows.get("kv_pool", 0)
        <= p.kv_bytes + p.index_bytes + batch * (p.kv.bytes_per_block)
    )
    assert rows.get("states", 0) == batch * p.kv.state_bytes_per_request
    assert batch * p.kv.request_bytes(context) == p.kv_bytes + p.index_bytes + p.states_bytes
    assert 0 <= p.kv_bytes_per_token_growing <= p.kv_bytes_per_token
    assert 0 < (p.active_parameters or 0) <= p.parameters
    for cell in p.kv_table:
        assert 0 <= cell.windowed_bytes <= cell.stored_bytes


@given(st.sampled_from(CONFIGS), st.integers(1, 2000), st.integers(1, 9), st.integers(0, 500), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_more_is_never_less(config: dict[str, Any], context: int, batch: int, longer: int, wider: int) -> None:
    small, large = (plan(config, context=n, batch=b) for n, b in ((context, batch), (context + longer, batch + wider)))
    for name in ("kv_bytes", "index_bytes", "states_bytes", "arena_bytes", "logits_bytes", "total_bytes"):
        assert getattr(small, name) <= getattr(large, name), name
    assert small.kv.kv_stored_bytes(context, evict_windows=True) <= large.kv.kv_stored_bytes(
        context + longer, evict_windows=True
    )
    bounded = (small.kv.kv_stored_bytes(context, evict_windows=True, step_tokens=n) for n in (0, 16, 512, 2**20))
    held = list(bounded)
    assert held == sorted(held)
    assert held[-1] == small.kv.kv_stored_bytes(context)


@given(st.sampled_from(CONFIGS))
@settings(max_examples=40, deadline=None)
def test_other_numbers_of_kv_heads_keep_less_or_more(config: dict[str, Any]) -> None:
    p = plan(config)
    if not p.alternatives:
        assert all(layer.v_dim == 0 for layer in p.kv.layers)  # latents, or no attention at all
        return
    mha, mqa = p.alternatives
    assert mqa.kv_bytes <= p.kv_bytes <= mha.kv_bytes
    assert (mqa.parameters or 0) <= p.parameters <= (mha.parameters or 0)
