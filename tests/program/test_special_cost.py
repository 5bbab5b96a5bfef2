"""Costs of what only some families have: sums, bounds, and counts one by one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwise.models import build_program
from kvwise.program.arena import plan_arena
from kvwise.program.cost import OpCost, ProgramCost, cost_of
from kvwise.program.ir import Program, Role
from kvwise.program.special import BorrowedAttention, DeltaRule, Experts, Index, LatentAttention, StateSpace
from kvwise.program.visible import chunk_positions, chunk_span
from kvwise.spec.hf_config import spec_from_config
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.shape import StepLimits, StepShape

RECORDS = json.loads((Path(__file__).parents[1] / "goldens" / "hf_counts.json").read_text())["records"]
CONFIGS: dict[str, dict[str, Any]] = {r["config"]["model_type"]: r["config"] for r in RECORDS}  # the last of each
SPECS = {name: spec_from_config(config) for name, config in CONFIGS.items()}
PROGRAMS = {name: build_program(spec) for name, spec in SPECS.items()}

names = st.sampled_from(sorted(PROGRAMS))
requests = st.integers(1, 200).flatmap(lambda context: st.tuples(st.integers(1, context), st.just(context)))
shapes = st.lists(requests, min_size=1, max_size=4).map(
    lambda pairs: StepShape(tuple(q for q, _ in pairs), tuple(n for _, n in pairs), len(pairs))
)


def bytes_bf16(program: Program) -> Callable[[str], int]:
    return lambda name: 2 * program.weights[name].num_elements


def cost(name: str, shape: StepShape) -> ProgramCost:
    return cost_of(PROGRAMS[name], shape, KVCacheSpec.of(SPECS[name]), bytes_bf16(PROGRAMS[name]))


@given(names, shapes)
@settings(max_examples=150, deadline=None)
def test_sums_equal_parts_nothing_is_negative_and_expected_is_between_least_and_most(
    name: str, shape: StepShape
) -> None:
    c = cost(name, shape)
    assert c.total == sum((part for _, part in c.ops), OpCost())
    for _, part in c.ops:
        parts = (part.weight_bytes, part.kv_read_bytes, part.kv_write_bytes, part.activation_bytes, part.state_bytes)
        assert min(part.flops, part.fewer_bytes, part.more_bytes, *parts) >= 0
        assert part.moved_bytes == sum(parts)
        assert 0 <= part.least_moved_bytes <= part.moved_bytes <= part.most_moved_bytes
    every_weight = sum(2 * w.num_elements for w in PROGRAMS[name].weights.values())
    looked_up = sum(p.weight_bytes for op, p in c.ops if type(op).__name__ in ("Embed", "Positions"))
    assert c.total.weight_bytes <= every_weight + looked_up


@given(names, st.integers(1, 150), st.integers(1, 6), st.integers(0, 50), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_more_context_and_more_requests_cost_no_less(
    name: str, context: int, batch: int, longer: int, wider: int
) -> None:
    """But for chunks: a query at a chunk's beginning sees less than one at the end of the last."""
    if name == "llama4_text":
        longer = 0
    small = cost(name, StepShape.decode(context, batch)).total
    large = cost(name, StepShape.decode(context + longer, batch + wider)).total
    for field in ("flops", "weight_bytes", "kv_read_bytes", "kv_write_bytes", "state_bytes", "least_moved_bytes",
                  "moved_bytes", "most_moved_bytes"):  # fmt: skip
        assert getattr(small, field) <= getattr(large, field), field


@given(names, st.integers(1, 300))
@settings(max_examples=80, deadline=None)
def test_a_longer_prompt_costs_no_less(name: str, tokens: int) -> None:
    small, large = (cost(name, StepShape.prefill(n)).total for n in (tokens, tokens + 1))
    for field in ("flops", "weight_bytes", "kv_read_bytes", "kv_write_bytes", "activation_bytes", "moved_bytes"):
        assert getattr(small, field) <= getattr(large, field), field


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_token_computes_two_flops_for_each_active_parameter_that_is_multiplied(name: str) -> None:
    """At context 1, apart from norms, activations, convolutions and recurrences, which are small beside matrices."""
    program = PROGRAMS[name]
    multiplied = sum(
        2 * (w.num_elements // w.shape[0] * w.top_k if w.top_k else w.num_elements)
        for w in program.weights.values()
        if w.role in (Role.MATRIX, Role.EXPERTS) or w.tied
    )
    recurrent = sum(p.flops for op, p in cost(name, StepShape.decode(1)).ops if isinstance(op, (DeltaRule, StateSpace)))
    flops = cost(name, StepShape.decode(1)).total.flops - recurrent
    assert multiplied <= flops + 8 * sum(w.num_elements for w in program.weights.values() if "conv" in w.name)
    assert flops < 1.35 * multiplied


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_what_is_written_is_what_the_cache_keeps(name: str) -> None:
    kv = KVCacheSpec.of(SPECS[name])
    total = cost(name, StepShape((1, 5), (30, 40), 2)).total
    assert total.kv_write_bytes == 6 * (kv.bytes_per_token + kv.index_bytes_per_token)
    assert total.state_bytes == 2 * 2 * kv.state_bytes_per_request


@pytest.mark.parametrize("name", [n for n in sorted(PROGRAMS) if n not in ("deepseek_v32", "glm_moe_dsa")])
def test_a_decode_step_reads_what_its_query_sees_once_for_each_layer_that_attends(name: str) -> None:
    kv, program = KVCacheSpec.of(SPECS[name]), PROGRAMS[name]
    for context in (1, 7, 64, 200):
        own = sum(kv.kv_read_bytes(i, context) for i in range(len(kv.layers)))
        again = sum(kv.kv_read_bytes(op.layer, context) for op in program.ops if isinstance(op, BorrowedAttention))
        assert cost(name, StepShape.decode(context)).total.kv_read_bytes == own + again


@given(st.integers(1, 300), st.integers(1, 80), st.data())
def test_chunks_are_counted_as_one_by_one(context: int, chunk: int, data: st.DataObject) -> None:
    queries = data.draw(st.integers(1, context))
    seen = [range(p - p % chunk, p + 1) for p in range(context - queries, context)]
    assert chunk_positions(queries, context, chunk) == sum(len(s) for s in seen)
    assert chunk_span(queries, context, chunk) == len(set().union(*(set(s) for s in seen)))


# Experts


def experts_cost(tokens: int) -> tuple[Experts, OpCost, Program]:
    name = "mixtral"
    found = next((op, p) for op, p in cost(name, StepShape.prefill(tokens)).ops if isinstance(op, Experts))
    return *found, PROGRAMS[name]


@pytest.mark.parametrize("tokens", [1, 2, 3, 10, 1000])
def test_experts_read_at_least_those_of_one_token_and_at_most_all(tokens: int) -> None:
    op, part, program = experts_cost(tokens)
    experts = program.weights[op.up].shape[0]
    each = sum(2 * program.weights[w].num_elements for w in op.weights) // experts
    least, most = part.weight_bytes - part.fewer_bytes, part.weight_bytes + part.more_bytes
    assert (least, most) == (op.top_k * each, min(experts, tokens * op.top_k) * each)
    if tokens == 1:
        assert part.weight_bytes == least == most
    if tokens == 1000:
        assert part.weight_bytes == most


def test_expected_experts_are_those_of_even_independent_choices() -> None:
    op, part, program = experts_cost(3)
    experts = program.weights[op.up].shape[0]
    each = sum(2 * program.weights[w].num_elements for w in op.weights) // experts
    assert part.weight_bytes == round(experts * (1 - (1 - op.top_k / experts) ** 3)) * each


def test_experts_compute_for_the_chosen_only() -> None:
    op, one, program = experts_cost(1)
    _, ten, _ = experts_cost(10)
    assert ten.flops == 10 * one.flops
    each = sum(program.weights[w].num_elements for w in op.weights) // program.weights[op.up].shape[0]
    assert 2 * op.top_k * each <= one.flops < 1.3 * 2 * op.top_k * each


# Latents and their index


def latent_ops(name: str, shape: StepShape) -> list[OpCost]:
    return [part for op, part in cost(name, shape).ops if isinstance(op, LatentAttention)]


def test_a_latent_is_read_once_for_all_heads() -> None:
    layer_bytes = KVCacheSpec.of(SPECS["deepseek_v2"]).layer_bytes_per_token(0)
    assert {part.kv_read_bytes for part in latent_ops("deepseek_v2", StepShape.decode(50))} == {50 * layer_bytes}
    assert {part.fewer_bytes + part.more_bytes for part in latent_ops("deepseek_v2", StepShape.prefill(50))} == {0}


def test_an_index_bounds_what_attention_reads_and_computes() -> None:
    config = {**CONFIGS["deepseek_v32"], "index_topk": 16}
    spec = spec_from_config(config)
    program, kv = build_program(spec), KVCacheSpec.of(spec)

    def parts(shape: StepShape, kind: type) -> list[OpCost]:
        ops = cost_of(program, shape, kv, bytes_bf16(program)).ops
        return [part for op, part in ops if isinstance(op, kind)]

    layer_bytes = kv.layer_bytes_per_token(0)
    for context in (1, 16, 17, 500):
        (attention, *_), (index, *_) = (parts(StepShape.decode(context), k) for k in (LatentAttention, Index))
        assert attention.kv_read_bytes == min(16, context) * layer_bytes
        assert attention.fewer_bytes == attention.more_bytes == 0
        assert index.kv_read_bytes == context * kv.layers[0].index_bytes
    far, farther = (parts(StepShape.decode(n), LatentAttention)[0].flops for n in (100, 1000))
    assert far == farther
    several = parts(StepShape((8,), (500,), 1), LatentAttention)[0]
    assert several.kv_read_bytes - several.fewer_bytes == 16 * layer_bytes
    assert several.kv_read_bytes + several.more_bytes == 8 * 16 * layer_bytes


# Memory


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_no_two_slots_that_live_at_once_share_bytes(name: str) -> None:
    program = PROGRAMS[name]
    arena = plan_arena(program, StepLimits(max_tokens=8, max_logits_rows=2, max_requests=2, max_context=64))
    last_read = {read: i for i, op in enumerate(program.ops) for read in op.reads}
    living: dict[str, int] = {}
    for i, op in enumerate(program.ops):
        living = {slot: end for slot, end in living.items() if end >= i}
        if op.out in arena.offsets:
            start, end = arena.offsets[op.out], arena.offsets[op.out] + arena.slot_bytes[op.out]
            for other in living:
                begin = arena.offsets[other]
                apart = end <= begin or begin + arena.slot_bytes[other] <= start
                replaced = op.in_place is not None and getattr(op, op.in_place) == other and living[other] == i
                assert apart or replaced, (op.out, other)
            living[op.out] = last_read.get(op.out, i)
