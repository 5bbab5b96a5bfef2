"""Costs are counts of the mathematics: what is counted here one by one, the formulas give at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.program.cost import OpCost, ProgramCost, cost_of
from kvwise.program.ir import Attention, MatMul, Program, Role
from kvwise.program.visible import visible_positions, visible_span
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.shape import StepShape
from program.families import PROGRAMS, SPECS

steps = st.integers(1, 60).flatmap(lambda context: st.tuples(st.integers(1, context), st.just(context)))
windows = st.one_of(st.none(), st.integers(1, 80))


def bytes_f32(program: Program) -> Callable[[str], int]:
    return lambda name: 4 * program.weights[name].num_elements


def cost(name: str, shape: StepShape) -> ProgramCost:
    spec = SPECS[name.removesuffix("_q8")]
    return cost_of(PROGRAMS[name], shape, KVCacheSpec.of(spec), bytes_f32(PROGRAMS[name]))


def seen_by(position: int, window: int | None) -> set[int]:
    """What the query at `position` attends to, by the definition in the IR."""
    return set(range(max(0, position + 1 - window) if window else 0, position + 1))


@given(steps, windows)
def test_visible_positions_are_the_cells_counted_one_by_one(step: tuple[int, int], window: int | None) -> None:
    queries, context = step
    counted = sum(len(seen_by(p, window)) for p in range(context - queries, context))
    assert visible_positions(queries, context, window) == counted


@given(steps, windows)
def test_visible_span_is_what_at_least_one_query_sees(step: tuple[int, int], window: int | None) -> None:
    queries, context = step
    seen = set().union(*(seen_by(p, window) for p in range(context - queries, context)))
    assert visible_span(queries, context, window) == len(seen)


@given(st.integers(1, 60), st.integers(0, 59), windows)
def test_chunks_of_a_prefill_cost_attention_as_much_as_the_whole(context: int, cut: int, window: int | None) -> None:
    cut = min(cut, context - 1)
    whole = visible_positions(context, context, window)
    parts = visible_positions(context - cut, context, window) + (visible_positions(cut, cut, window) if cut else 0)
    assert whole == parts


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_total_is_the_sum_of_the_ops(name: str) -> None:
    c = cost(name, StepShape((3, 1), (10, 20), 2))
    assert c.total == sum((part for _, part in c.ops), OpCost())
    assert [op for op, _ in c.ops] == list(PROGRAMS[name].ops)
    assert all(value >= 0 for _, part in c.ops for value in (part.flops, part.moved_bytes))


@pytest.mark.parametrize("name", SPECS)
def test_matmuls_are_two_flops_per_weight_and_row(name: str) -> None:
    program, shape = PROGRAMS[name], StepShape((5,), (5,), 1)
    for op, part in cost(name, shape).ops:
        if isinstance(op, MatMul):
            out, width = program.weights[op.weight].shape
            rows = 1 if op.out == "logits" else 5
            assert part.flops == 2 * rows * out * width + (rows * out if op.bias else 0)


@pytest.mark.parametrize("name", SPECS)
def test_a_decode_step_reads_every_weight_once_and_one_row_of_the_embedding(name: str) -> None:
    program = PROGRAMS[name]
    matrices = sum(4 * w.num_elements for w in program.weights.values() if w.role is not Role.EMBEDDING)
    embedding = program.weights["embed.weight"]
    row = 4 * embedding.shape[1]
    head = 4 * embedding.num_elements if embedding.tied else 0
    norms_of_q_and_k_are_read_like_any_other = matrices + row + head
    assert cost(name, StepShape.decode(30)).total.weight_bytes == norms_of_q_and_k_are_read_like_any_other


@pytest.mark.parametrize("name", SPECS)
def test_weights_are_read_once_however_many_tokens(name: str) -> None:
    embedding_row = 4 * PROGRAMS[name].weights["embed.weight"].shape[1]
    one, many = (cost(name, StepShape((n,), (n,), 1)).total.weight_bytes for n in (1, 17))
    assert many - one == 16 * embedding_row


@pytest.mark.parametrize("name", SPECS)
def test_kv_bytes_follow_the_spec_and_its_windows(name: str) -> None:
    kv = KVCacheSpec.of(SPECS[name])
    shape = StepShape.decode(30, batch=3)
    total = cost(name, shape).total
    assert total.kv_write_bytes == 3 * kv.bytes_per_token
    assert total.kv_read_bytes == 3 * sum(kv.kv_read_bytes(i, 30) for i in range(len(kv.layers)))


@pytest.mark.parametrize("name", SPECS)
def test_costs_grow_with_context_and_batch(name: str) -> None:
    contexts = [cost(name, StepShape.decode(n)).total for n in (1, 8, 24, 25, 100)]
    batches = [cost(name, StepShape.decode(16, n)).total for n in (1, 2, 8)]
    for costs in (contexts, batches):
        assert [c.flops for c in costs] == sorted(c.flops for c in costs)
        assert [c.moved_bytes for c in costs] == sorted(c.moved_bytes for c in costs)


def test_a_batch_costs_what_its_requests_cost_but_for_the_weights_read_once() -> None:
    shapes = [StepShape((1,), (20,), 1), StepShape((5,), (9,), 1)]
    together = cost("llama", StepShape((1, 5), (20, 9), 2)).total
    apart = [cost("llama", shape).total for shape in shapes]
    assert together.flops == sum(c.flops for c in apart)
    assert together.kv_read_bytes == sum(c.kv_read_bytes for c in apart)
    assert together.kv_write_bytes == sum(c.kv_write_bytes for c in apart)
    assert together.activation_bytes == sum(c.activation_bytes for c in apart)
    assert together.weight_bytes < sum(c.weight_bytes for c in apart)


def test_attention_counts_scores_values_and_softmax() -> None:
    shape = StepShape((4,), (10,), 1)
    attention = next(part for op, part in cost("llama", shape).ops if isinstance(op, Attention))
    cells = 7 + 8 + 9 + 10
    heads, head_dim, softmax = 4, 16, 5
    assert attention.flops == cells * heads * (2 * 2 * head_dim + softmax)


def test_llama_2_7b_computes_about_two_flops_per_parameter_and_token() -> None:
    from kvwise.models import build_program
    from kvwise.spec.hf_config import spec_from_config

    spec = spec_from_config({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
                             "intermediate_size": 11008, "num_attention_heads": 32})  # fmt: skip
    program = build_program(spec)
    total = cost_of(program, StepShape.decode(1), KVCacheSpec.of(spec), bytes_f32(program)).total
    multiplied = program.num_parameters - program.weights["embed.weight"].num_elements
    assert math.isclose(total.flops, 2 * multiplied, rel_tol=1e-3)
