"""Tensor parallelism: the program that each of n equal ranks runs, with the sums and gathers between them.

    by output   q k v gate up, heads of states      each rank has rows of the matrix and columns of the result
    by input    o down                              each rank has columns of the matrix and a partial sum
    by vocabulary   embedding, head                 partial sums of looked-up rows; columns of logits
    whole       norms, router, latents, indexer     the same on every rank

K and V are split by heads; where there are fewer heads than ranks each rank holds one, so that a head is held several
times. A latent has one head for all and is whole on every rank. Experts are split inside: each rank has a part of
every expert. The vocabulary is padded to a multiple of 64 and of n. What does not divide is refused: no rank may have
more than another. A sum is taken once, where a whole slot is first needed, so that two partial sums that are added
cost one. Of a partial sum with a bias the first rank adds it.
Sources: Megatron-LM (arXiv 1909.08053) §3; vLLM's model_executor/layers: linear.py for replicated KV heads,
vocab_parallel_embedding.py for the padding, mamba/mamba_utils.py for groups.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any, Final

from kvwise.errors import UsageError
from kvwise.program.collective import AllGather, AllReduce, TakeShard
from kvwise.program.ir import (
    Add,
    Attention,
    Embed,
    GatherRows,
    MatMul,
    Op,
    Program,
    RmsNorm,
    Slot,
    Weight,
)
from kvwise.program.special import (
    BorrowedAttention,
    CausalConv,
    DeltaRule,
    Experts,
    Gate,
    GroupRmsNorm,
    Index,
    LatentAttention,
    LayerNorm,
    Positions,
    Route,
    StateSpace,
    VariedAttention,
)
from kvwise.spec.kv import LayerState
from kvwise.units import align_up

VOCAB_PADDING: Final = 64  # as vLLM's vocab_parallel_embedding.py

_LAYER: Final = re.compile(r"(layers\.\d+)\.")
_BY_OUTPUT: Final = (
    "attn.q", "attn.k", "attn.v", "attn.gate", "mlp.gate", "mlp.up", "mlp.shared.gate", "mlp.shared.up",
    "linear.qkv", "linear.z", "linear.beta", "linear.decay", "mamba.z", "mamba.xbc", "mamba.dt",
)  # fmt: skip
_BY_INPUT: Final = ("attn.o", "mlp.down", "mlp.shared.down", "linear.o", "mamba.o")


class Layout(Enum):
    """What a rank has of a slot."""

    WHOLE = "whole"
    SHARD = "shard"
    PARTIAL = "partial sum"


def shard_program(program: Program, ranks: int) -> Program:
    """The program of each of `ranks` equal ranks; `program` itself for one. Pure.

    Its weights, K and V and states are what one rank holds. Raises UsageError for what can't be split evenly.
    """
    return program if ranks == 1 else _Sharder(program, ranks).sharded()


class _Sharder:
    """Goes through the ops in order; knows of each slot what a rank has of it."""

    def __init__(self, program: Program, ranks: int) -> None:
        self._program, self._ranks = program, ranks
        self._ops: list[Op] = []
        self._slots: dict[str, Slot] = {}
        self._layouts: dict[str, Layout] = {}
        self._whole: dict[str, str] = {}  # a shard or partial sum -> the slot that has it whole
        self._weights: dict[str, Weight] = {}
        self._kv_layers = list(program.kv_layers)
        self._states = list(program.states)
        mixers = (op for op in program.ops if isinstance(op, (Attention, DeltaRule, StateSpace)))
        self._mixers = {_layer_of(op.out): op for op in mixers}

    def sharded(self) -> Program:
        for op in self._program.ops:
            _HANDLERS.get(type(op), _Sharder._along)(self, op)
        output = self._as_whole(self._program.output)
        return Program(
            tuple(self._ops),
            self._slots,
            self._weights,
            self._program.ropes,
            tuple(self._kv_layers),
            output,
            tuple(self._states),
        )

    # What ops have in common

    def _emit(self, op: Op, width: int, layout: Layout, like: str | None = None) -> None:
        """`like`: the slot of the whole program whose rows it has; default: of the same name."""
        self._slots[op.out] = replace(self._program.slots[like or op.out], name=op.out, width=width)
        self._layouts[op.out] = layout
        self._ops.append(op)

    def _as_whole(self, slot: str) -> str:
        """The slot that has `slot` whole, summed or gathered where it is not."""
        if self._layouts[slot] is Layout.WHOLE:
            return slot
        if slot not in self._whole:
            name, width = f"{slot}.whole", self._program.slots[slot].width
            partial_sum = self._layouts[slot] is Layout.PARTIAL
            op: Op = (AllReduce if partial_sum else AllGather)(out=name, x=slot, ranks=self._ranks)
            self._emit(op, width, Layout.WHOLE, slot)
            self._whole[slot] = name
        return self._whole[slot]

    def _read_whole(self, op: Op) -> Op:
        return replace(op, **{f: self._as_whole(v) for f in op.slot_fields if (v := getattr(op, f)) is not None})

    def _weight(self, name: str | None, *shape: int) -> None:
        """Declare what a rank has of a weight; without a shape, all of it."""
        if name is not None:
            weight = self._program.weights[name]
            self._weights[name] = replace(weight, shape=shape) if shape else weight

    def _share(self, n: int, what: str) -> int:
        if n % self._ranks:
            possible = [str(ranks) for ranks in range(1, n + 1) if n % ranks == 0]
            raise UsageError(
                f"{n} {what} can't be split evenly over {self._ranks} devices",
                expected=f"tensor parallelism of {', '.join(possible[:12])}",
            )
        return n // self._ranks

    def _share_or_copy(self, n: int, what: str) -> int:
        """Of what has to be on every rank: one each where there are fewer than ranks."""
        return 1 if n < self._ranks and self._ranks % n == 0 else self._share(n, what)

    def _vocab_rows(self, vocab: int) -> int:
        return align_up(vocab, math.lcm(VOCAB_PADDING, self._ranks)) // self._ranks

    # Ops that act on each element, head or group by itself

    def _along(self, op: Op) -> None:
        """The result has its inputs' layout. Partial sums may only be added up, chosen from, or scaled by the row.

        What has been made whole is read whole, so that the residual is kept once.
        """
        op = replace(op, **{f: self._whole.get(getattr(op, f), getattr(op, f)) for f in op.slot_fields})
        first, *others = (self._layouts[slot] for slot in op.reads)
        linear = isinstance(op, (Add, GatherRows)) or (isinstance(op, Gate) and others == [Layout.WHOLE])
        same = all(layout is first for layout in others) or isinstance(op, Gate)
        if Layout.PARTIAL in (first, *others) and not (linear and same):
            op, first = self._read_whole(op), Layout.WHOLE
        for weight in op.weights:
            self._weight(weight)
        self._emit(op, self._slots[op.reads[0]].width, first)

    def _norm(self, op: RmsNorm | LayerNorm) -> None:
        """Over groups that a rank has whole; else over the row, which is gathered for it and cut again."""
        group = op.group if isinstance(op, RmsNorm) else self._program.slots[op.x].width
        if self._layouts[op.x] is Layout.SHARD and self._slots[op.x].width % group == 0:
            return self._along(op)
        for weight in op.weights:
            self._weight(weight)
        width = self._program.slots[op.x].width
        if self._layouts[op.x] is not Layout.SHARD:
            return self._emit(replace(op, x=self._as_whole(op.x)), width, Layout.WHOLE)
        normed = replace(op, x=self._as_whole(op.x), out=f"{op.out}.gathered")
        self._emit(normed, width, Layout.WHOLE, op.out)
        cut = TakeShard(out=op.out, x=normed.out, ranks=self._ranks)
        return self._emit(cut, self._slots[op.x].width, Layout.SHARD)

    def _group_norm(self, op: GroupRmsNorm) -> None:
        self._share(self._program.slots[op.x].width // op.group, "groups of a norm")
        self._weight(op.weight, self._slots[op.x].width)
        self._emit(op, self._slots[op.x].width, Layout.SHARD)

    # Tables and matrices

    def _embed(self, op: Embed) -> None:
        vocab, width = self._program.weights[op.table].shape
        self._weight(op.table, self._vocab_rows(vocab), width)
        self._emit(op, width, Layout.PARTIAL)

    def _positions(self, op: Positions) -> None:
        self._weight(op.table)
        self._emit(op, self._program.slots[op.out].width, Layout.WHOLE)

    def _matmul(self, op: MatMul) -> None:
        out, width = self._program.weights[op.weight].shape
        stem = _LAYER.sub("", op.weight).removesuffix(".weight")
        if stem in _BY_INPUT:
            self._weight(op.weight, out, self._slots[op.x].width)
            self._weight(op.bias)
            return self._emit(op, out, Layout.PARTIAL)
        op = replace(op, x=self._as_whole(op.x))
        if stem in ("embed", "lm_head"):
            return self._rows_of(op, self._vocab_rows(out), width)
        if stem in _BY_OUTPUT:
            return self._rows_of(op, self._projected(_layer_of(op.weight), stem, out), width)
        self._weight(op.weight)
        self._weight(op.bias)
        return self._emit(op, out, Layout.WHOLE)

    def _rows_of(self, op: MatMul, rows: int, width: int) -> None:
        self._weight(op.weight, rows, width)
        if op.bias is not None:
            self._weight(op.bias, rows)
        self._emit(op, rows, Layout.SHARD)

    def _projected(self, layer: str, stem: str, out: int) -> int:
        """A rank's rows of a projection of `out` rows that feeds the layer's mixer, or its feed-forward block."""
        mixer = self._mixers.get(layer)
        if isinstance(mixer, Attention) and stem in ("attn.k", "attn.v"):
            return out // mixer.num_kv_heads * self._share_or_copy(mixer.num_kv_heads, "KV heads")
        if isinstance(mixer, DeltaRule) and stem == "linear.qkv":
            keys, values = self._delta_heads(mixer)
            return 2 * keys * mixer.key_dim + values * mixer.value_dim
        if isinstance(mixer, StateSpace) and stem == "mamba.xbc":
            heads, groups = self._state_heads(mixer)
            return heads * mixer.head_dim + 2 * groups * mixer.state_dim
        return self._share(out, f"outputs of {stem}")

    def _experts(self, op: Experts) -> None:
        count, inner, width = self._program.weights[op.up].shape
        share = self._share(inner, "elements inside an expert")
        for name in (op.gate, op.up):
            self._weight(name, count, share, width)
        for name in (op.gate_bias, op.up_bias):
            self._weight(name, count, share)
        self._weight(op.down, count, width, share)
        self._weight(op.down_bias)
        self._emit(self._read_whole(op), width, Layout.PARTIAL)

    def _on_every_rank(self, op: Op) -> None:
        """What is not split: the router's choice, the index."""
        for weight in op.weights:
            self._weight(weight)
        self._emit(self._read_whole(op), self._program.slots[op.out].width, Layout.WHOLE)

    # Mixers

    def _attention(self, op: Attention) -> None:
        q_heads = self._share(op.num_q_heads, "query heads")
        kv_heads = self._share_or_copy(op.num_kv_heads, "KV heads")
        kept = self._kv_layers[op.layer] = replace(self._program.kv_layers[op.layer], num_kv_heads=kv_heads)
        if isinstance(op, VariedAttention):
            self._weight(op.sinks, q_heads)
        self._emit(replace(op, num_q_heads=q_heads, num_kv_heads=kv_heads), q_heads * kept.v_dim, Layout.SHARD)

    def _borrowed(self, op: BorrowedAttention) -> None:
        q_heads = self._share(op.num_q_heads, "query heads")
        self._emit(replace(op, num_q_heads=q_heads), q_heads * op.v_head_dim, Layout.SHARD)

    def _latent(self, op: LatentAttention) -> None:
        heads = self._share(op.num_q_heads, "query heads")
        self._weight(op.kv_up, heads * (op.nope_dim + op.v_head_dim), op.kv_rank)
        chosen = None if op.chosen is None else self._as_whole(op.chosen)
        op = replace(op, latent=self._as_whole(op.latent), k_rope=self._as_whole(op.k_rope), chosen=chosen)
        self._emit(replace(op, num_q_heads=heads), heads * op.v_head_dim, Layout.SHARD)

    def _conv(self, op: CausalConv) -> None:
        width = self._slots[op.x].width
        self._weight(op.weight, width, self._program.weights[op.weight].shape[1])
        if op.bias is not None:
            self._weight(op.bias, width)
        self._emit(op, width, Layout.SHARD)

    def _delta_heads(self, op: DeltaRule) -> tuple[int, int]:
        return self._share(op.num_key_heads, "key heads"), self._share(op.num_value_heads, "value heads")

    def _delta(self, op: DeltaRule) -> None:
        keys, values = self._delta_heads(op)
        for name in op.weights:
            self._weight(name, values)
        self._keep_state(op, values * op.key_dim * op.value_dim)
        self._emit(replace(op, num_key_heads=keys, num_value_heads=values), values * op.value_dim, Layout.SHARD)

    def _state_heads(self, op: StateSpace) -> tuple[int, int]:
        return self._share(op.num_heads, "heads"), self._share_or_copy(op.num_groups, "groups")

    def _state_space(self, op: StateSpace) -> None:
        heads, groups = self._state_heads(op)
        for name in op.weights:
            self._weight(name, heads)
        self._keep_state(op, heads * op.head_dim * op.state_dim)
        self._emit(replace(op, num_heads=heads, num_groups=groups), heads * op.head_dim, Layout.SHARD)

    def _keep_state(self, op: DeltaRule | StateSpace, recurrent_elements: int) -> None:
        """The convolution keeps as many tokens as before, of the rank's columns."""
        tokens = self._program.states[op.state].conv_elements // self._program.slots[op.x].width
        self._states[op.state] = LayerState(recurrent_elements, tokens * self._slots[op.x].width)


def _layer_of(name: str) -> str:
    match = _LAYER.match(name)
    return match[1] if match else ""


_HANDLERS: Final[dict[type[Op], Callable[[_Sharder, Any], None]]] = {
    RmsNorm: _Sharder._norm,
    LayerNorm: _Sharder._norm,
    GroupRmsNorm: _Sharder._group_norm,
    Embed: _Sharder._embed,
    Positions: _Sharder._positions,
    MatMul: _Sharder._matmul,
    Experts: _Sharder._experts,
    Route: _Sharder._on_every_rank,
    Index: _Sharder._on_every_rank,
    Attention: _Sharder._attention,
    VariedAttention: _Sharder._attention,
    BorrowedAttention: _Sharder._borrowed,
    LatentAttention: _Sharder._latent,
    CausalConv: _Sharder._conv,
    DeltaRule: _Sharder._delta,
    StateSpace: _Sharder._state_space,
}
