"""Rewrites of a program that every reading sees. A fusion or a quantized activation is one of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvwise.frozen import dataclass
from kvwise.program.ir import Q8_BLOCK, MatMul, Narrow, Op, Program, Quantize, Slot, SlotType


@dataclass(frozen=True, slots=True)
class Rounding:
    """How a matmul wants its activations: as q8, q8x2 or bf16. group: elements that share a scale, of the first two."""

    type: SlotType = SlotType.Q8
    group: int = Q8_BLOCK

    def of(self, x: str, out: str) -> Op:
        if self.type is SlotType.BF16:
            return Narrow(out=out, x=x)
        return Quantize(out=out, x=x, group=self.group, twice=self.type is SlotType.Q8X2)

    @property
    def suffix(self) -> str:
        return f".{self.type.value}" + ("" if self.group == Q8_BLOCK else f"g{self.group}")


def round_activations(program: Program, wanted: Callable[[str], Rounding | None]) -> Program:
    """Feed each MatMul from a slot rounded as `wanted` by its weight; once per input and kind, however many read it."""
    ops: list[Op] = []
    slots = dict(program.slots)
    for op in program.ops:
        if isinstance(op, MatMul) and (rounding := wanted(op.weight)) is not None:
            name = op.x + rounding.suffix
            if name not in slots:
                source = slots[op.x]
                slots[name] = Slot(name, source.rows, source.width, rounding.type)
                ops.append(rounding.of(op.x, name))
            op = replace(op, x=name)
        ops.append(op)
    return replace(program, ops=tuple(ops), slots=slots)
