"""Lays out a program's activations in one buffer by lifetime, before anything runs.

A slot lives from the op that writes it to the last op that reads it. Two slots may share bytes only if their lives
do not overlap; an output may start on an input's bytes where the op allows it and that input dies there. Matmuls in a
row count as one op, so that a backend may compute them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kvwise.frozen import dataclass
from kvwise.program.ir import MatMul, Program, Rows, Slot
from kvwise.spec.shape import StepLimits
from kvwise.units import align_up

ALIGNMENT: Final = 64  # one cache line, one AVX-512 vector


@dataclass(frozen=True, slots=True)
class Arena:
    """`offsets` maps each slot to its first byte; the output slot is not in it: logits have their own row."""

    offsets: Mapping[str, int]
    slot_bytes: Mapping[str, int]
    total_bytes: int
    logits_bytes: int


@dataclass(slots=True)
class _Storage:
    """One run of bytes shared by a chain of in-place slots; alive for ops first..last inclusive."""

    nbytes: int
    first: int
    last: int
    offset: int = -1


def plan_arena(program: Program, limits: StepLimits) -> Arena:
    """Greedy best fit, largest storage first. Deterministic; pure."""
    sizes = {name: _max_bytes(slot, limits) for name, slot in program.slots.items()}
    storages = _storages(program, sizes)
    alive: list[list[_Storage]] = [[] for _ in program.ops]  # by op, those that have their place
    for storage in sorted({id(s): s for s in storages.values()}.values(), key=lambda s: (-s.nbytes, s.first)):
        moments = alive[storage.first : storage.last + 1]
        storage.offset = _lowest_gap(storage.nbytes, {id(s): s for moment in moments for s in moment}.values())
        for moment in moments:
            moment.append(storage)
    return Arena(
        {name: s.offset for name, s in storages.items()},
        sizes,
        max((s.offset + s.nbytes for s in storages.values()), default=0),
        sizes[program.output],
    )


def _max_bytes(slot: Slot, limits: StepLimits) -> int:
    rows = limits.max_tokens if slot.rows is Rows.TOKENS else limits.max_logits_rows
    return align_up(rows * slot.row_bytes, ALIGNMENT)


def _storages(program: Program, sizes: Mapping[str, int]) -> dict[str, _Storage]:
    begin, end_of = _runs(program)
    last_read = {read: i for i, op in enumerate(program.ops) for read in op.reads}
    storages: dict[str, _Storage] = {}
    for i, op in enumerate(program.ops):
        if op.out == program.output:
            continue
        end = end_of[last_read.get(op.out, i)]
        source = getattr(op, op.in_place) if op.in_place else None
        if source in storages and last_read[source] == i and sizes[source] == sizes[op.out]:
            storages[op.out] = storages[source]
            storages[source].last = end
        else:
            storages[op.out] = _Storage(sizes[op.out], begin[i], end)
    return storages


def _runs(program: Program) -> tuple[list[int], list[int]]:
    """The first and last op of the run of matmuls that each op is in; other ops are on their own."""
    matmul = [isinstance(op, MatMul) for op in program.ops]
    begin, end = list(range(len(matmul))), list(range(len(matmul)))
    for i in range(1, len(matmul)):
        if matmul[i - 1] and matmul[i]:
            begin[i] = begin[i - 1]
    for i in reversed(range(len(matmul) - 1)):
        if matmul[i] and matmul[i + 1]:
            end[i] = end[i + 1]
    return begin, end


def _lowest_gap(nbytes: int, placed: Iterable[_Storage]) -> int:
    offset = 0
    for start, end in sorted((s.offset, s.offset + s.nbytes) for s in placed):
        if start - offset >= nbytes:
            break
        offset = max(offset, end)
    return offset
