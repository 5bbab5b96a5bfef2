"""Pipeline parallelism: a program cut into stages of layers, each handing its hidden state to the next.

What comes before the first layer is the first stage's, what comes after the last one the last stage's; a tied head is
stored by both. Layers are spread evenly. Those left over go to the stages before the last, and not to the first where
that is possible: both hold tables beside their layers.
Source of the spread: vLLM's distributed/utils.py, get_pp_indices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from kvwise.errors import UsageError
from kvwise.program.collective import Receive, Send
from kvwise.program.ir import Attention, Op, Program, Rows, Slot
from kvwise.program.special import BorrowedAttention, CausalConv, DeltaRule, Index, LatentAttention, StateSpace

_LAYER: Final = re.compile(r"layers\.(\d+)\.")


def split_stages(program: Program, stages: int) -> tuple[Program, ...]:
    """The programs of `stages` stages, in order; `program` itself for one. Pure.

    A stage's output is the logits in the last, and in the others an empty slot: what they hand on is sent.
    Raises UsageError for fewer layers than stages, and for a layer that reads another stage's K and V.
    """
    if stages == 1:
        return (program,)
    stage_of = _stages_of_ops(program, stages)
    written_in = {op.out: stage for op, stage in zip(program.ops, stage_of, strict=True)}
    last_read: dict[str, int] = {}
    for op, stage in zip(program.ops, stage_of, strict=True):
        last_read.update((slot, max(stage, last_read.get(slot, 0))) for slot in op.reads)
    parts = []
    for stage in range(stages):
        ops = [op for op, its in zip(program.ops, stage_of, strict=True) if its == stage]
        arriving = [slot for slot, first in written_in.items() if first < stage <= last_read.get(slot, -1)]
        leaving = [slot for slot, first in written_in.items() if first <= stage < last_read.get(slot, -1)]
        parts.append(_part(program, ops, arriving, leaving))
    return tuple(parts)


def stage_layers(num_layers: int, stages: int) -> tuple[int, ...]:
    """How many layers each stage has. Raises UsageError where some would have none."""
    if stages > num_layers:
        raise UsageError(
            f"{num_layers} layers can't be spread over {stages} stages", expected=f"at most {num_layers} stages"
        )
    layers = [num_layers // stages] * stages
    for left_over in range(num_layers % stages):
        layers[-2 - left_over] += 1
    return tuple(layers)


def _stages_of_ops(program: Program, stages: int) -> list[int]:
    """The stage of each op, in order."""
    layers = [int(match[1]) if (match := _LAYER.match(op.out)) else None for op in program.ops]
    spread = stage_layers(1 + max((layer for layer in layers if layer is not None), default=-1), stages)
    stage_of_layer = [stage for stage, count in enumerate(spread) for _ in range(count)]
    out: list[int] = []
    before_all_layers = True
    for layer in layers:
        before_all_layers &= layer is None
        rest = 0 if before_all_layers else stages - 1
        out.append(rest if layer is None else stage_of_layer[layer])
    return out


def _part(program: Program, ops: list[Op], arriving: Iterable[str], leaving: Iterable[str]) -> Program:
    """A stage's ops with what it receives and sends, and only the weights, K and V and states that they use."""
    received = [Receive(out=slot) for slot in arriving]
    sent = [Send(out=f"{slot}.sent", x=slot) for slot in leaving]
    kept = {op.layer: None for op in ops if isinstance(op, (Attention, LatentAttention))}
    kv_layers = {layer: index for index, layer in enumerate(kept)}
    recurrent = {op.state: None for op in ops if isinstance(op, CausalConv)}
    states = {state: index for index, state in enumerate(recurrent)}
    slots = {op.out: program.slots[op.out] for op in (*received, *ops)}
    slots.update((op.out, Slot(op.out, Rows.TOKENS, 0)) for op in sent)
    return Program(
        (*received, *(_renumbered(op, kv_layers, states) for op in ops), *sent),
        slots,
        {name: program.weights[name] for op in ops for name in op.weights},
        program.ropes,
        tuple(program.kv_layers[layer] for layer in kv_layers),
        sent[-1].out if sent else program.output,
        tuple(program.states[state] for state in states),
    )


def _renumbered(op: Op, kv_layers: Mapping[int, int], states: Mapping[int, int]) -> Op:
    """The op with the numbers that its layer of the cache and its state have in the stage."""
    if isinstance(op, (Attention, BorrowedAttention, LatentAttention, Index)):
        if op.layer not in kv_layers:
            raise UsageError(
                f"{op.out} reads K and V of a layer that is on another stage", expected="no pipeline parallelism"
            )
        return replace(op, layer=kv_layers[op.layer])
    if isinstance(op, (CausalConv, DeltaRule, StateSpace)):
        return replace(op, state=states[op.state])
    return op
