"""Which weights are converted while they are loaded, and to what. Decides; converts nothing.

What a matmul reads is converted: every projection, the head, and with a tied head the embedding. An embedding that is
only looked up reads one row a token and stays as it is stored, as vectors do; so does a matrix whose rows are no whole
number of the type's blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvwise.errors import UsageError
from kvwise.program.ir import MatMul, Program
from kvwise.spec.dtypes import TENSOR_TYPES, TensorType
from kvwise.spec.fields import shown


def held_types(program: Program, stored: Mapping[str, TensorType], wanted: str) -> dict[str, TensorType]:
    """The type that each weight is held in when those that a matmul reads are to be `wanted`.

    Raises UsageError for a type that nothing is converted to, and where a matrix is quantized already, otherwise.
    """
    from kvwise.checkpoint.quants import QUANTIZERS

    convertible = [name for name in QUANTIZERS if not TENSOR_TYPES[name].is_float]
    if wanted not in convertible:
        raise UsageError(f"weights can't be converted to {shown(wanted)}", expected=f"one of {', '.join(convertible)}")
    kind = TENSOR_TYPES[wanted]
    read_by_matmuls = dict.fromkeys(op.weight for op in program.ops if isinstance(op, MatMul))
    out = dict(stored)
    for name in read_by_matmuls:
        if stored[name] == kind:
            continue
        if not stored[name].is_float:
            raise UsageError(
                f"{name} is stored as {stored[name].name}, which can't be converted to {wanted}",
                expected="weights in f32, f16 or bf16",
                action="load them as they are stored, or take a file that is not quantized",
            )
        if program.weights[name].shape[-1] % kind.block_elements == 0:
            out[name] = kind
    if all(out[name] != kind for name in read_by_matmuls):
        raise UsageError(
            f"no matrix of this model can be held as {wanted}",
            expected=f"rows of a multiple of {kind.block_elements} elements",
        )
    return out
