"""Writes a Program op by op, declaring each slot and weight as it is first used. Families are written with it.

The methods for ops of special.py are in special_builder.py.
"""

from __future__ import annotations

from dataclasses import replace

from kvwise.errors import SpecError
from kvwise.program.ir import (
    Add,
    Attention,
    Embed,
    GatherRows,
    Glu,
    MatMul,
    Op,
    Program,
    RmsNorm,
    Role,
    Rope,
    Rows,
    Slot,
    Softcap,
    Weight,
)
from kvwise.spec.kv import LayerKV, LayerState, layer_kv
from kvwise.spec.model import Activation, AttentionSpec, Mixer, NormSpec, RopeSpec


class ProgramBuilder:
    """Each method appends one op and returns the name of the slot it writes."""

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._slots: dict[str, Slot] = {}
        self._weights: dict[str, Weight] = {}
        self._ropes: list[RopeSpec] = []
        self._kv_layers: list[LayerKV] = []
        self._states: list[LayerState] = []

    def width(self, slot: str) -> int:
        return self._slots[slot].width

    def embed(self, name: str, table: str, vocab: int, hidden: int, scale: float = 1.0) -> str:
        self._weight(Weight(table, (vocab, hidden), Role.EMBEDDING))
        return self._emit(Embed(out=name, table=table, scale=scale), Rows.TOKENS, hidden)

    def rms_norm(self, name: str, x: str, weight: str, norm: NormSpec, group: int | None = None) -> str:
        width = self._slots[x].width
        group = group or width
        self._weight(Weight(weight, (group,), Role.VECTOR))
        op = RmsNorm(out=name, x=x, weight=weight, eps=norm.eps, weight_offset=norm.weight_offset, group=group)
        return self._emit(op, self._slots[x].rows, width)

    def matmul(self, name: str, x: str, weight: str, out_width: int, *, bias: bool = False) -> str:
        """`weight` ends in '.weight'; its bias is the same name ending in '.bias'."""
        source = self._slots[x]
        self._weight(Weight(weight, (out_width, source.width), Role.MATRIX))
        bias_name = weight.removesuffix(".weight") + ".bias" if bias else None
        if bias_name is not None:
            self._weight(Weight(bias_name, (out_width,), Role.VECTOR))
        return self._emit(MatMul(out=name, x=x, weight=weight, bias=bias_name), source.rows, out_width)

    def rope(self, name: str, x: str, rope: RopeSpec, head_dim: int) -> str:
        if rope not in self._ropes:
            self._ropes.append(rope)
        op = Rope(out=name, x=x, rope=self._ropes.index(rope), head_dim=head_dim)
        return self._emit(op, Rows.TOKENS, self._slots[x].width)

    def attention(self, name: str, q: str, k: str, v: str, spec: AttentionSpec) -> str:
        """Opens the next layer of the KV cache."""
        op = Attention(
            out=name,
            q=q,
            k=k,
            v=v,
            layer=self._open_kv_layer(spec),
            num_q_heads=spec.num_q_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            scale=spec.scale,
            softcap=spec.softcap,
            window=spec.window,
        )
        return self._emit(op, Rows.TOKENS, spec.q_width)

    def add(self, name: str, x: str, y: str) -> str:
        return self._emit(Add(out=name, x=x, y=y), self._slots[x].rows, self._slots[x].width)

    def glu(self, name: str, gate: str, up: str, activation: Activation) -> str:
        slot = self._slots[gate]
        return self._emit(Glu(out=name, gate=gate, up=up, activation=activation), slot.rows, slot.width)

    def gather_rows(self, name: str, x: str) -> str:
        return self._emit(GatherRows(out=name, x=x), Rows.LOGITS, self._slots[x].width)

    def softcap(self, name: str, x: str, cap: float) -> str:
        return self._emit(Softcap(out=name, x=x, cap=cap), self._slots[x].rows, self._slots[x].width)

    def build(self, output: str) -> Program:
        return Program(
            tuple(self._ops),
            self._slots,
            self._weights,
            tuple(self._ropes),
            tuple(self._kv_layers),
            output,
            tuple(self._states),
        )

    def _open_kv_layer(self, mixer: Mixer) -> int:
        kept = layer_kv(mixer)
        if kept is None:
            raise SpecError(f"{type(mixer).__name__} keeps no K and V")
        self._kv_layers.append(kept)
        return len(self._kv_layers) - 1

    def _emit(self, op: Op, rows: Rows, width: int) -> str:
        for read in op.reads:
            if read not in self._slots:
                raise SpecError(f"op {type(op).__name__} reads slot {read!r} before it is written")
        if op.out in self._slots:
            raise SpecError(f"slot {op.out!r} is written twice")
        self._slots[op.out] = Slot(op.out, rows, width)
        self._ops.append(op)
        return op.out

    def _weight(self, weight: Weight) -> None:
        known = self._weights.setdefault(weight.name, weight)
        if known.shape != weight.shape:
            raise SpecError(f"weight {weight.name!r} is used as {known.shape} and as {weight.shape}")
        if known.role is Role.EMBEDDING and weight.role is Role.MATRIX:
            self._weights[weight.name] = replace(known, tied=True)
