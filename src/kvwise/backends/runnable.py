"""What can be run, and not only counted and priced: the ops that every running backend computes.

The one check before a weight is read; backends need none of their own.
"""

from __future__ import annotations

from typing import Final

from kvwise.errors import BackendError
from kvwise.program.ir import (
    Add,
    Attention,
    Embed,
    GatherRows,
    Glu,
    MatMul,
    Narrow,
    Op,
    Program,
    Quantize,
    RmsNorm,
    Rope,
    Softcap,
)

RUNNABLE_OPS: Final[frozenset[type[Op]]] = frozenset(
    {Add, Attention, Embed, GatherRows, Glu, MatMul, Narrow, Quantize, RmsNorm, Rope, Softcap}
)


def runs(program: Program) -> bool:
    return all(type(op) in RUNNABLE_OPS for op in program.ops)


def check_runs(program: Program, family: str, backend: str, *, has_names: bool) -> None:
    """Raise BackendError, naming the family and its ops, unless a backend computes every op of `program`.

    has_names: whether the family's tensors can be found in a file. Without names nothing could be loaded.
    """
    missing = list(dict.fromkeys(type(op).__name__ for op in program.ops if type(op) not in RUNNABLE_OPS))
    if missing:
        reason = f"the {backend} backend has no {', '.join(missing)}"
    elif not has_names:
        reason = "the names of its tensors are not mapped yet"
    else:
        return
    raise BackendError(
        f"{family} models are counted and priced only: {reason}",
        action="plan it with `kvwise plan`, or run a model of another family",
    )
