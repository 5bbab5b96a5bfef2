"""The plan of a loaded model adds up, says whether it fits, and offers only changes that are true."""

from __future__ import annotations

import mmap
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwise.backends.protocol import Buffer, LoadOptions
from kvwise.backends.reference.backend import REFERENCE
from kvwise.errors import DoesNotFit
from kvwise.ledger.host import HostMemory, MemoryLimit
from kvwise.ledger.memory import (
    MemoryPlan,
    changes_that_fit,
    check_fits,
    choose_num_blocks,
    measure_plan,
    plan_memory,
    vary_plan,
)
from kvwise.ledger.residency import Reading
from kvwise.ledger.rows import LedgerRow, largest_residual_bytes, residual_row, sum_measured, sum_predicted
from kvwise.models import build_program
from kvwise.planner.sizes import StoredSizes, uniform_types
from kvwise.spec.dtypes import TENSOR_TYPES
from kvwise.spec.hf_config import spec_from_config
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.shape import StepLimits
from kvwise.units import GiB, MiB, ceil_div

SPEC = spec_from_config({
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 8, "intermediate_size": 1024,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 8000, "max_position_embeddings": 65536,
})  # fmt: skip
RUNTIME = 50 * MiB


def make_plan(
    available: int,
    *,
    context: int = 4096,
    requests: int = 4,
    step: int = 512,
    kv: str = "f32",
    limit: int | None = None,
    runtime: int = RUNTIME,
) -> MemoryPlan:
    program = build_program(SPEC)
    cache = KVCacheSpec.of(SPEC, kv)
    limits = StepLimits(max_tokens=step, max_logits_rows=requests, max_requests=requests, max_context=context)
    options = LoadOptions(num_blocks=requests * cache.blocks_for(context), limits=limits)
    types = uniform_types(program, TENSOR_TYPES["f32"])
    host = HostMemory(64 * GiB, (MemoryLimit("MemAvailable", available),))
    return plan_memory(program, types, cache, options, StoredSizes(), runtime, host, memory_limit=limit)


def test_rows_are_the_needs_and_sum_to_the_total() -> None:
    plan = make_plan(64 * GiB)
    assert [row.name for row in plan.rows] == ["weights", "kv_pool", "arena", "logits", "tables", "runtime"]
    assert sum_predicted(plan.rows) == plan.total_bytes == plan.needs.total_bytes + RUNTIME
    assert all(row.unit == "B" and row.source for row in plan.rows)


@pytest.mark.parametrize("slack", [-1, 0, 1])
def test_it_fits_exactly_when_the_total_and_its_reserve_are_there(slack: int) -> None:
    roomy = make_plan(64 * GiB)
    needed = roomy.total_bytes + roomy.reserve_bytes
    assert make_plan(needed - RUNTIME + slack).fits is (slack >= 0)  # what runs already is not available any more
    assert make_plan(64 * GiB, limit=needed + slack).fits is (slack >= 0)


def test_a_plan_that_fits_raises_nothing() -> None:
    check_fits(make_plan(64 * GiB), SPEC)


def test_the_refusal_has_the_arithmetic() -> None:
    plan = make_plan(200 * MiB)
    with pytest.raises(DoesNotFit) as caught:
        check_fits(plan, SPEC)
    text = str(caught.value)
    for row in plan.rows:
        assert not row.predicted or f"{row.label} {row.format_value(row.predicted)}" in text
    assert "MemAvailable" in text
    assert "in reserve" in text


def test_each_offered_change_is_true_and_the_largest_that_is() -> None:
    plan = make_plan(400 * MiB)
    changes = " | ".join(change.words for change in changes_that_fit(plan, SPEC))
    context = int(re.search(r"a context of ([\d,]+) tokens", changes)[1].replace(",", ""))  # type: ignore[index]
    requests = int(re.search(r"(\d+) requests? at a time", changes)[1])  # type: ignore[index]
    assert make_plan(400 * MiB, context=context).fits
    assert not make_plan(400 * MiB, context=context + 16).fits
    assert make_plan(400 * MiB, requests=requests).fits
    assert not make_plan(400 * MiB, requests=requests + 1).fits


def test_kv_types_step_sizes_and_weight_types_are_offered_where_they_are_enough() -> None:
    roomy = make_plan(64 * GiB)
    needed = roomy.total_bytes + roomy.reserve_bytes - RUNTIME
    changes = [change.words for change in changes_that_fit(make_plan(needed - MiB), SPEC)]
    assert "K and V in f16" in changes
    assert "K and V in bf16" in changes
    assert "weights in q4_0" in changes
    assert any("tokens in a step" in change for change in changes)
    without_spec = [change.words for change in changes_that_fit(make_plan(needed - MiB))]
    assert "weights in q4_0" not in without_spec


def test_where_no_single_change_is_enough_it_says_so() -> None:
    with pytest.raises(DoesNotFit, match="no single change"):
        check_fits(make_plan(MiB), SPEC)


@given(st.integers(1, 2 * GiB))
@settings(max_examples=25, deadline=None)
def test_the_pool_is_the_largest_that_fits(available: int) -> None:
    plan = make_plan(available)
    try:
        blocks = choose_num_blocks(plan)
    except DoesNotFit:
        least = plan.kv.blocks_for(plan.options.limits.max_context)
        assert not vary_plan(plan, options=replace(plan.options, num_blocks=least)).fits
        return
    assert vary_plan(plan, options=replace(plan.options, num_blocks=blocks)).fits
    assert blocks >= plan.kv.blocks_for(plan.options.limits.max_context)
    if blocks < plan.options.num_blocks:
        assert not vary_plan(plan, options=replace(plan.options, num_blocks=blocks + 1)).fits


def test_a_pool_never_grows_beyond_what_was_asked_for() -> None:
    plan = make_plan(64 * GiB)
    assert choose_num_blocks(plan) == plan.options.num_blocks == 4 * ceil_div(4096, 16)


def test_measured_rows_show_touched_pages_and_the_residual_is_the_rest() -> None:
    plan = make_plan(64 * GiB, runtime=10 * MiB)
    # Mapped and untouched. Not np.zeros: a heap with room left by earlier tests would hand out cleared, touched pages.
    pool = np.frombuffer(mmap.mmap(-1, plan.needs.kv_pool_bytes), np.uint8)
    logits = np.ones(plan.needs.logits_bytes, np.uint8)
    buffers = (Buffer("kv_pool", pool.ctypes.data, pool.nbytes), Buffer("logits", logits.ctypes.data, logits.nbytes))
    rows = {row.name: row for row in measure_plan(plan, buffers, Reading(100 * MiB, "given"))}
    if "pagemap" not in rows["kv_pool"].source:
        pytest.skip("pagemap can't be read here")
    assert (rows["kv_pool"].measured or 0) < MiB < (rows["kv_pool"].predicted or 0)
    assert rows["logits"].measured == rows["logits"].predicted
    assert rows["runtime"].measured == 10 * MiB
    assert rows["weights"].measured is None  # no buffer said where they are
    measured = sum(int(row.measured or 0) for name, row in rows.items() if name != "residual")
    assert rows["residual"].measured == 100 * MiB - measured
    assert rows["residual"].predicted == 0


def test_several_buffers_of_a_row_add_up() -> None:
    plan = make_plan(64 * GiB)
    parts = [np.ones(100_000, np.uint8) for _ in range(3)]
    buffers = [Buffer("weights", part.ctypes.data, part.nbytes) for part in parts]
    row = next(row for row in measure_plan(plan, buffers) if row.name == "weights")
    if "pagemap" not in row.source:
        pytest.skip("pagemap can't be read here")
    assert row.measured == 300_000


def test_the_reference_backend_is_planned_by_its_own_needs() -> None:
    plan = make_plan(64 * GiB)
    own = plan_memory(plan.program, plan.types, plan.kv, plan.options, REFERENCE, RUNTIME, plan.host)
    assert own.needs == REFERENCE.memory_needs(plan.program, plan.types, plan.kv, plan.options)


# Rows


def test_rows_tell_apart_what_is_zero_and_what_is_unknown() -> None:
    rows = (LedgerRow("weights", 100, None, "B", "formula"), LedgerRow("tables", 0, 0, "B", "formula / pagemap"))
    assert [row.to_json()["measured"] for row in rows] == [None, 0]
    assert [row.format_value(row.measured) for row in rows] == ["-", "0 B"]
    assert (sum_predicted(rows), sum_measured(rows)) == (100, 0)


def test_errors_are_relative_to_what_was_measured() -> None:
    assert LedgerRow("ttft", 1.1, 1.0, "s", "price / clock").error == pytest.approx(0.1)
    assert LedgerRow("ttft", None, 1.0, "s", "clock").error is None
    assert LedgerRow("residual", 0, 0, "B", "").error is None
    assert LedgerRow("residual", 0, 100, "B", "").error is None


def test_seconds_are_not_summed_with_bytes() -> None:
    rows = (LedgerRow("weights", 100, 90, "B", ""), LedgerRow("ttft", 5.0, 6.0, "s", ""))
    assert (sum_predicted(rows), sum_measured(rows)) == (100, 90)


def test_a_residual_may_be_unknown_or_negative() -> None:
    rows = (LedgerRow("weights", 100, 90, "B", ""),)
    assert residual_row(rows, None, "RSS").measured is None
    assert residual_row(rows, 50, "RSS").measured == -40


def test_the_residual_may_be_3_percent_or_32_mib() -> None:
    assert largest_residual_bytes(MiB) == 32 * MiB
    assert largest_residual_bytes(100 * GiB) == 3 * GiB
