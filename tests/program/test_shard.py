"""What each of several devices holds and computes: shares that sum to the whole, copies that are meant, refusals."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvwise.errors import UsageError
from kvwise.models import build_program
from kvwise.program.arena import plan_arena
from kvwise.program.collective import AllGather, AllReduce, Receive, Send, TakeShard
from kvwise.program.cost import cost_of
from kvwise.program.ir import Add, Attention, Glu, MatMul, Program, Role
from kvwise.program.shard import VOCAB_PADDING, shard_program
from kvwise.program.special import BorrowedAttention
from kvwise.program.stages import split_stages, stage_layers
from kvwise.spec.hf_config import spec_from_config
from kvwise.spec.kv import KV_TYPES, KVCacheSpec
from kvwise.spec.shape import StepLimits, StepShape
from program.families import SPECS
from program.test_special_cost import RECORDS
from program.test_special_cost import SPECS as COUNTED_SPECS

PROGRAMS = {name: build_program(spec) for name, spec in {**SPECS, **COUNTED_SPECS}.items()}
LIMITS = StepLimits(64, 4, 4, 128)
names = st.sampled_from(sorted(PROGRAMS))


def shard(program: Program, ranks: int) -> Program:
    """The rank's program; a draw that can't be split evenly is not one."""
    try:
        return shard_program(program, ranks)
    except UsageError:
        assume(False)
        raise


def kv_of(program: Program) -> KVCacheSpec:
    return KVCacheSpec(program.kv_layers, KV_TYPES["f16"], 16, program.states)


@given(names, st.sampled_from([2, 4, 8]))
@settings(max_examples=120, deadline=None)
def test_the_ranks_shares_of_a_weight_are_the_whole_and_what_is_copied(name: str, ranks: int) -> None:
    whole = PROGRAMS[name]
    rank = shard(whole, ranks)
    assert rank.weights.keys() == whole.weights.keys()
    for weight in whole.weights.values():
        held = ranks * rank.weights[weight.name].num_elements
        copied = rank.weights[weight.name] == weight
        vocabulary = weight.role is Role.EMBEDDING or weight.name.startswith(("lm_head", "embed"))
        head_copied = weight.name.endswith(("attn.k.weight", "attn.v.weight", "attn.k.bias", "attn.v.bias"))
        groups_copied = "mamba.xbc" in weight.name or "mamba.conv" in weight.name
        if copied:
            assert held == ranks * weight.num_elements
        elif vocabulary:
            assert 0 <= held - weight.num_elements < ranks * VOCAB_PADDING * weight.shape[-1]
        elif head_copied or groups_copied:
            assert weight.num_elements <= held <= ranks * weight.num_elements
        else:
            assert held == weight.num_elements, weight.name


@given(names, st.sampled_from([2, 4, 8]))
@settings(max_examples=100, deadline=None)
def test_kv_heads_and_states_are_split_and_copied_only_where_there_are_fewer_than_ranks(name: str, ranks: int) -> None:
    whole = PROGRAMS[name]
    rank = shard(whole, ranks)
    assert len(rank.kv_layers) == len(whole.kv_layers)
    for mine, all_of_it in zip(rank.kv_layers, whole.kv_layers, strict=True):
        assert (mine.k_dim, mine.v_dim, mine.window, mine.chunk) == (
            all_of_it.k_dim, all_of_it.v_dim, all_of_it.window, all_of_it.chunk
        )  # fmt: skip
        assert mine.index_bytes == all_of_it.index_bytes
        latent = all_of_it.v_dim == 0
        assert mine.num_kv_heads == (1 if latent else max(1, all_of_it.num_kv_heads // ranks))
    for part, state in zip(rank.states, whole.states, strict=True):
        assert part.recurrent_elements * ranks == state.recurrent_elements
        assert state.conv_elements <= part.conv_elements * ranks <= state.conv_elements * ranks


@given(names, st.sampled_from([1, 2, 4]))
@settings(max_examples=100, deadline=None)
def test_more_ranks_hold_no_more_each(name: str, ranks: int) -> None:
    """But for the vocabulary's padding, which a few words do not hide."""
    few, many = shard(PROGRAMS[name], ranks), shard(PROGRAMS[name], 2 * ranks)
    for weight in few.weights.values():
        if weight.role is not Role.EMBEDDING and not weight.name.startswith("lm_head"):
            assert many.weights[weight.name].num_elements <= weight.num_elements
    assert kv_of(many).bytes_per_token <= kv_of(few).bytes_per_token
    assert kv_of(many).state_bytes_per_request <= kv_of(few).state_bytes_per_request


@given(names, st.sampled_from([1, 2, 4]), st.integers(1, 3))
@settings(max_examples=120, deadline=None)
def test_widths_agree_from_op_to_op_on_every_rank_and_stage(name: str, ranks: int, stages: int) -> None:
    for program in stages_of(name, ranks, stages):
        written: set[str] = set()
        for op in program.ops:
            assert set(op.reads) <= written
            written.add(op.out)
            width = {slot: program.slots[slot].width for slot in (*op.reads, op.out)}
            if isinstance(op, MatMul):
                rows, columns = program.weights[op.weight].shape
                assert (width[op.out], width[op.x]) == (rows, columns)
                assert op.bias is None or program.weights[op.bias].shape == (rows,)
            elif isinstance(op, (Add, Glu)):
                assert len(set(width.values())) == 1, op
            elif isinstance(op, Attention):
                kept = program.kv_layers[op.layer]
                assert width[op.q] == op.num_q_heads * op.head_dim
                assert width[op.k] == kept.num_kv_heads * kept.k_dim == op.num_kv_heads * op.head_dim
                assert width[op.v] == kept.num_kv_heads * kept.v_dim
            elif isinstance(op, (AllReduce, Send)):
                assert width[op.out] in (width[op.x], 0)
        assert program.output in written
        assert {w for op in program.ops for w in op.weights} == program.weights.keys()


def stages_of(name: str, ranks: int, stages: int) -> tuple[Program, ...]:
    try:
        return split_stages(shard_program(PROGRAMS[name], ranks), stages)
    except UsageError:
        assume(False)
        raise


@given(names, st.sampled_from([1, 2]), st.integers(2, 4))
@settings(max_examples=100, deadline=None)
def test_stages_share_out_layers_states_and_weights_and_only_a_tied_table_is_held_twice(
    name: str, ranks: int, stages: int
) -> None:
    whole = shard(PROGRAMS[name], ranks)
    parts = stages_of(name, ranks, stages)
    assert sum((part.kv_layers for part in parts), ()) == whole.kv_layers
    assert sum((part.states for part in parts), ()) == whole.states
    homes = {w: [i for i, part in enumerate(parts) if w in part.weights] for w in whole.weights}
    twice = {w for w, where in homes.items() if len(where) > 1}
    assert all(where for where in homes.values())
    assert twice <= {w.name for w in whole.weights.values() if w.tied} | {"input_norm.weight"}
    assert all(0 in homes[w] for w in whole.weights if w == "embed.weight")
    assert stages - 1 in homes["final_norm.weight"]
    ops = [op for part in parts for op in part.ops if not isinstance(op, (Send, Receive))]
    assert [op.out for op in ops] == [op.out for op in whole.ops]


@given(names, st.sampled_from([1, 2]), st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_what_a_stage_receives_is_what_the_one_before_sends(name: str, ranks: int, stages: int) -> None:
    parts = stages_of(name, ranks, stages)
    for before, after in pairwise(parts):
        sent = {op.x for op in before.ops if isinstance(op, Send)}
        assert sent == {op.out for op in after.ops if isinstance(op, Receive)}
        assert sent
    assert not any(isinstance(op, Receive) for op in parts[0].ops)
    assert not any(isinstance(op, Send) for op in parts[-1].ops)


@given(names, st.sampled_from([1, 2, 4]), st.integers(1, 3), st.integers(1, 40), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_every_rank_and_stage_has_an_arena_and_a_price(
    name: str, ranks: int, stages: int, context: int, batch: int
) -> None:
    parts = stages_of(name, ranks, stages)
    shape = StepShape.decode(context, batch)
    costs = [cost_of(p, shape, kv_of(p), lambda w, p=p: 2 * p.weights[w].num_elements).total for p in parts]  # type: ignore[misc]
    arenas = [plan_arena(p, LIMITS) for p in parts]
    assert all(arena.total_bytes > 0 for arena in arenas)
    assert [arena.logits_bytes > 0 for arena in arenas] == [False] * (stages - 1) + [True]
    assert sum(c.link_bytes for c in costs) > 0 or ranks * stages == 1
    alone = cost_of(PROGRAMS[name], shape, kv_of(PROGRAMS[name]), lambda w: 2 * PROGRAMS[name].weights[w].num_elements)
    assert alone.total.link_bytes == 0
    assert ranks * sum(c.flops for c in costs) >= alone.total.flops
    assert sum(c.kv_read_bytes for c in costs) <= alone.total.kv_read_bytes


@pytest.mark.parametrize(("ranks", "rows"), [(2, 10), (4, 7)])
def test_a_ring_sends_twice_what_the_other_ranks_hold(ranks: int, rows: int) -> None:
    """2 (n - 1) / n of the slot for a sum, n - 1 shards for a gather: by hand for the hidden state and the logits."""
    program = shard_program(PROGRAMS["llama"], ranks)
    shape = StepShape((rows,), (rows,), 1)
    cost = cost_of(program, shape, kv_of(program), lambda _: 0)
    sums = [c.link_bytes for op, c in cost.ops if isinstance(op, AllReduce)]
    gathers = [c.link_bytes for op, c in cost.ops if isinstance(op, AllGather)]
    layers, hidden, vocab = 3, 64, 320  # 259 words, padded to a multiple of 64
    assert sums == [2 * (ranks - 1) * rows * hidden * 4 // ranks] * (1 + 2 * layers)
    assert gathers == [(ranks - 1) * vocab // ranks * 4]


def test_norms_over_all_heads_gather_and_cut_again() -> None:
    program = shard_program(PROGRAMS["olmo2"], 2)
    q_norm = next(op for op in program.ops if op.out.endswith("q_normed.gathered"))
    assert program.slots[q_norm.out].width == program.slots[q_norm.reads[0]].width
    cut = next(op for op in program.ops if isinstance(op, TakeShard))
    assert program.slots[cut.out].width * 2 == program.slots[cut.x].width


def test_one_rank_and_one_stage_change_nothing() -> None:
    for program in PROGRAMS.values():
        assert shard_program(program, 1) is program
        assert split_stages(program, 1) == (program,)


@pytest.mark.parametrize(
    ("fields", "ranks", "reason"),
    [
        ({"num_attention_heads": 6, "hidden_size": 96, "num_key_value_heads": 2}, 4, "6 query heads"),
        ({"num_attention_heads": 6, "hidden_size": 96, "num_key_value_heads": 3}, 2, "3 KV heads"),
        ({"intermediate_size": 98}, 4, "98 outputs of mlp.gate"),
    ],
)
def test_what_does_not_divide_is_refused_by_what_it_is(fields: dict[str, int], ranks: int, reason: str) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96,
              "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64, **fields}  # fmt: skip
    with pytest.raises(UsageError, match=reason):
        shard_program(build_program(spec_from_config(config)), ranks)


@given(st.integers(1, 130), st.integers(1, 16))
def test_layers_are_spread_evenly_and_the_last_stage_has_no_more_than_others(layers: int, stages: int) -> None:
    assume(stages <= layers)
    spread = stage_layers(layers, stages)
    assert sum(spread) == layers
    assert max(spread) - min(spread) <= 1
    assert spread[-1] == min(spread)
    if stages > 2 and layers % stages <= stages - 2:
        assert spread[0] == min(spread)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(UsageError, match="3 layers"):
        split_stages(PROGRAMS["llama"], 4)


def test_a_layer_that_reads_another_stages_kv_is_refused() -> None:
    config = next(r["config"] for r in RECORDS if r["config"].get("num_kv_shared_layers"))
    shared = build_program(spec_from_config(config))
    assert any(isinstance(op, BorrowedAttention) for op in shared.ops)
    with pytest.raises(UsageError, match="another stage"):
        split_stages(shared, spec_from_config(config).num_layers)
