"""Ranks and stages, run in step by the reference's formulas, compute the logits that one device computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvwise.backends.reference.ops import Step, compute
from kvwise.backends.reference.store import KVStore
from kvwise.program.collective import AllGather, AllReduce, Receive, Send, TakeShard
from kvwise.program.ir import Embed, Program
from kvwise.program.shard import shard_program
from kvwise.program.stages import split_stages
from kvwise.spec.kv import KV_TYPES, KVCacheSpec
from native.models import Part, step
from program.test_shard import PROGRAMS

Array = NDArray[Any]
RUN = ("llama_bias_tied", "mistral", "qwen2", "qwen3", "gemma2", "olmo2")
BATCH = step([Part(list(range(3, 60)), 0, 20, [0, 1]), Part(list(range(9, 250, 30)), 0, 7, [3])])


def random_weights(program: Program) -> dict[str, Array]:
    rng = np.random.default_rng(7)
    return {w.name: rng.standard_normal(w.shape) / np.sqrt(w.shape[-1]) for w in program.weights.values()}


def run(ranks: list[list[Program]], weights: list[dict[str, Array]]) -> Array:
    """`ranks[stage][rank]`: all ranks of a stage op by op, each with slots of its own; then the next stage."""
    handed: dict[str, Array] = {}
    for stage in ranks:
        kv = KVCacheSpec(stage[0].kv_layers, KV_TYPES["f32"])
        slots: list[dict[str, Array]] = [{} for _ in stage]
        steps = [Step(BATCH, s, w, stage[0].ropes, KVStore(kv, 8)) for s, w in zip(slots, weights, strict=True)]
        for op in stage[0].ops:
            match op:
                case AllReduce():
                    outs = [sum(s[op.x] for s in slots)] * len(stage)
                case AllGather():
                    whole = np.concatenate([s[op.x] for s in slots], axis=1)
                    outs = [whole[:, : stage[0].slots[op.out].width]] * len(stage)
                case TakeShard():
                    width = stage[0].slots[op.out].width
                    outs = [s[op.x][:, rank * width : (rank + 1) * width] for rank, s in enumerate(slots)]
                case Send():
                    handed[op.x], outs = slots[0][op.x], [np.zeros((0, 0))] * len(stage)
                case Receive():
                    outs = [handed[op.out]] * len(stage)
                case Embed():
                    outs = [looked_up(w[op.table], op.scale, rank) for rank, w in enumerate(weights)]
                case _:
                    outs = [compute(op, s) for s in steps]
            for s, out in zip(slots, outs, strict=True):
                assert out.shape[1] == stage[0].slots[op.out].width
                s[op.out] = out
    return slots[0][stage[0].output]


def looked_up(table: Array, scale: float, rank: int) -> Array:
    """A rank has rows rank · n .. of the table, and zeros for words that are not in it."""
    local = BATCH.token_ids - rank * len(table)
    mine = (local >= 0) & (local < len(table))
    out: Array = np.where(mine[:, None], table[np.where(mine, local, 0)], 0.0) * scale
    return out


def share_of(whole: Program, part: Program, name: str, values: Array, rank: int, ranks: int) -> Array:
    """A rank's part of a weight: its block of the split axis; a padded one is filled up, a shared KV head copied."""
    shape = part.weights[name].shape
    if shape == whole.weights[name].shape:
        return values
    axis = next(i for i, (mine, all_of_it) in enumerate(zip(shape, values.shape, strict=True)) if mine != all_of_it)
    mine, there = shape[axis], values.shape[axis]
    if mine * ranks > there and ("attn.k" in name or "attn.v" in name):
        start = rank * (there // mine) // ranks * mine  # fewer heads than ranks
    else:
        start = rank * mine
        missing = max(0, mine * ranks - there)
        values = np.concatenate([values, np.zeros([*values.shape[:axis], missing, *values.shape[axis + 1 :]])], axis)
    return np.take(values, range(start, start + mine), axis)


@pytest.mark.parametrize("name", RUN)
@pytest.mark.parametrize(("ranks", "stages"), [(2, 1), (4, 1), (1, 2), (2, 3)])
def test_several_devices_compute_what_one_does(name: str, ranks: int, stages: int) -> None:
    whole = PROGRAMS[name]
    weights = random_weights(whole)
    alone = run([[whole]], [weights])
    part = shard_program(whole, ranks)
    parts = split_stages(part, stages)
    shares = []
    for rank in range(ranks):
        share = {w: share_of(whole, part, w, values, rank, ranks) for w, values in weights.items()}
        others = [w for w in share if rank and w.endswith((".o.bias", ".down.bias"))]
        shares.append(share | {w: np.zeros_like(share[w]) for w in others})  # the first rank adds a sum's bias
    together = run([[p] * ranks for p in parts], shares)
    assert together.shape == alone.shape
    np.testing.assert_allclose(together, alone, rtol=1e-9, atol=1e-9)
