"""Rewrites of a program that every reading sees. A fusion or a quantized activation is one of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvwise.program.ir import Q8_BLOCK, MatMul, Op, Program, Quantize, Slot, SlotType


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a matmul wants its activations: `group` elements share a scale; twice: as q8x2."""

    group: int = Q8_BLOCK
    twice: bool = False

    @property
    def slot_type(self) -> SlotType:
        return SlotType.Q8X2 if self.twice else SlotType.Q8

    @property
    def suffix(self) -> str:
        return f".{self.slot_type.value}" + ("" if self.group == Q8_BLOCK else f"g{self.group}")


def quantize_activations(program: Program, wanted: Callable[[str], Quantization | None]) -> Program:
    """Feed each MatMul from a slot quantized as `wanted` by its weight; once per input and kind, however many read it."""
    ops: list[Op] = []
    slots = dict(program.slots)
    for op in program.ops:
        if isinstance(op, MatMul) and (kind := wanted(op.weight)) is not None:
            name = op.x + kind.suffix
            if name not in slots:
                source = slots[op.x]
                slots[name] = Slot(name, source.rows, source.width, kind.slot_type)
                ops.append(Quantize(out=name, x=op.x, group=kind.group, twice=kind.twice))
            op = replace(op, x=name)
        ops.append(op)
    return replace(program, ops=tuple(ops), slots=slots)
