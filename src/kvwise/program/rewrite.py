"""Rewrites of a program that every reading sees. A fusion or a quantized activation is one of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvwise.program.ir import MatMul, Op, Program, Quantize, Slot, SlotType


def quantize_activations(program: Program, wants_q8: Callable[[str], bool]) -> Program:
    """Feed every MatMul whose weight `wants_q8` from a q8 slot, quantized once per input, however many read it."""
    ops: list[Op] = []
    slots = dict(program.slots)
    quantized: dict[str, str] = {}
    for op in program.ops:
        if isinstance(op, MatMul) and wants_q8(op.weight):
            if op.x not in quantized:
                name = quantized[op.x] = f"{op.x}.q8"
                source = slots[op.x]
                slots[name] = Slot(name, source.rows, source.width, SlotType.Q8)
                ops.append(Quantize(out=name, x=op.x))
            op = replace(op, x=quantized[op.x])
        ops.append(op)
    return replace(program, ops=tuple(ops), slots=slots)
