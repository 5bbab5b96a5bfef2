"""The arena never gives two slots that are needed at the same time the same bytes, whatever the program."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwise.program.arena import ALIGNMENT, plan_arena
from kvwise.program.ir import MatMul, Program, Rows
from kvwise.spec.shape import StepLimits
from program.families import PROGRAMS, random_programs

LIMITS = StepLimits(max_tokens=7, max_logits_rows=3, max_requests=3, max_context=64)
limits = st.builds(
    lambda tokens, rows: StepLimits(
        max_tokens=max(tokens, rows), max_logits_rows=rows, max_requests=rows, max_context=9
    ),
    st.integers(1, 40),
    st.integers(1, 8),
)


def check_by_running(program: Program, limits: StepLimits) -> None:
    """Run the program on bytes that remember who wrote them: every read must find what its slot's op wrote."""
    arena = plan_arena(program, limits)
    owner: list[str | None] = [None] * arena.total_bytes

    def span(slot: str) -> range:
        return range(arena.offsets[slot], arena.offsets[slot] + arena.slot_bytes[slot])

    for index, op in enumerate(program.ops):
        for read in op.reads:
            if read != program.output:
                assert all(owner[i] == read for i in span(read)), f"{read} was overwritten before op {index}"
        if op.out == program.output:
            continue
        assert arena.offsets[op.out] % ALIGNMENT == 0
        assert span(op.out).stop <= arena.total_bytes
        for read in op.reads:
            overlap = read != program.output and set(span(read)) & set(span(op.out))
            if overlap:
                in_place = getattr(op, op.in_place) if op.in_place else None
                assert read == in_place, f"op {index} overwrites {read}, which it can't do in place"
                assert span(read) == span(op.out), f"op {index} starts in the middle of {read}"
        for i in span(op.out):
            owner[i] = op.out


@given(random_programs(), limits)
@settings(max_examples=150)
def test_matmuls_in_a_row_overwrite_nothing_of_each_other(program: Program, limits: StepLimits) -> None:
    """A backend may compute them at the same time."""
    arena = plan_arena(program, limits)

    def span(slot: str) -> set[int]:
        start = arena.offsets.get(slot)
        return set() if start is None else set(range(start, start + arena.slot_bytes[slot]))

    for _, group in itertools.groupby(program.ops, key=lambda op: isinstance(op, MatMul)):
        run = [op for op in group if isinstance(op, MatMul)]
        for one, other in itertools.permutations(run, 2):
            assert not span(one.out) & (span(other.out) | span(other.x)) or one.out == other.x


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_family_runs_in_its_arena(name: str) -> None:
    check_by_running(PROGRAMS[name], LIMITS)


@given(random_programs(), limits)
@settings(max_examples=150)
def test_random_programs_run_in_their_arena(program: Program, limits: StepLimits) -> None:
    check_by_running(program, limits)


@given(random_programs(), limits)
@settings(max_examples=50)
def test_sizes_are_those_of_the_largest_step(program: Program, limits: StepLimits) -> None:
    arena = plan_arena(program, limits)
    for name, slot in program.slots.items():
        rows = limits.max_tokens if slot.rows is Rows.TOKENS else limits.max_logits_rows
        assert 0 <= arena.slot_bytes[name] - rows * slot.row_bytes < ALIGNMENT
    assert arena.logits_bytes == arena.slot_bytes[program.output]
    assert program.output not in arena.offsets


@given(random_programs(), limits)
@settings(max_examples=50)
def test_the_arena_is_no_larger_than_all_slots_and_no_smaller_than_any_moment(
    program: Program, limits: StepLimits
) -> None:
    arena = plan_arena(program, limits)
    last = {read: i for i, op in enumerate(program.ops) for read in op.reads}
    first = {op.out: i for i, op in enumerate(program.ops) if op.out != program.output}
    assert arena.total_bytes <= sum(arena.slot_bytes[name] for name in first)
    for i in range(len(program.ops)):
        # What is alive between two ops must be there at the same time; within an op an output may replace an input.
        alive = sum(arena.slot_bytes[n] for n, start in first.items() if start <= i < last.get(n, start))
        assert alive <= arena.total_bytes


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_larger_step_never_needs_less(name: str) -> None:
    sizes = [plan_arena(PROGRAMS[name], StepLimits(n, 1, 1, 64)).total_bytes for n in (1, 2, 16, 17, 512)]
    assert sizes == sorted(sizes)


def test_layers_share_their_bytes() -> None:
    llama, longer = PROGRAMS["llama"], PROGRAMS["gemma3"]
    one_layer = sum(plan_arena(llama, LIMITS).slot_bytes[n] for n in llama.slots if n.startswith("layers.0."))
    assert plan_arena(llama, LIMITS).total_bytes < one_layer
    assert plan_arena(longer, LIMITS).total_bytes < sum(plan_arena(longer, LIMITS).slot_bytes.values()) / 20


@given(random_programs(), limits)
@settings(max_examples=20)
def test_the_layout_is_always_the_same(program: Program, limits: StepLimits) -> None:
    assert plan_arena(program, limits) == plan_arena(program, limits)
