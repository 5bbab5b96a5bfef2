"""Operations between ranks: what one of several devices sends and receives while each computes its part of a step.

A slot is whole on every rank, a shard (each rank has columns of its own), or a partial sum. Same rules as in ir.py.
Which transport carries them is for a backend or a price to know.
"""

from __future__ import annotations

from typing import ClassVar

from kvwise.frozen import dataclass
from kvwise.program.ir import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce(Op):
    """out = the sum of x over all `ranks`, on each of them."""

    x: str
    ranks: int
    in_place: ClassVar[str | None] = "x"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGather(Op):
    """out = the columns of all `ranks` side by side, on each of them."""

    x: str
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeShard(Op):
    """out = this rank's columns of x, which is whole."""

    x: str
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Op):
    """Hand x to the next stage of the pipeline; out has no columns."""

    x: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive(Op):
    """out = what the stage before sent."""

    slot_fields: ClassVar[tuple[str, ...]] = ()


Collective = AllReduce | AllGather | TakeShard | Send | Receive
