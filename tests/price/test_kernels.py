"""A program is cut into the kernels that engines launch, and nothing of it is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from kvwise.backends.price.kernels import Kernel, KernelKind, kernels_of
from kvwise.models import build_program
from kvwise.program.ir import Program
from kvwise.program.shard import shard_program
from price.models import LLAMA_8B, QWEN3_32B, program_of
from program.families import SPECS
from program.test_special_cost import SPECS as SPECIAL

FAMILIES = {**SPECS, **SPECIAL}


def kernels(program: Program, **asked: bool) -> tuple[Kernel, ...]:
    return kernels_of(program, lambda name: ("bf16", 2 * program.weights[name].num_elements), **asked)


def named(kernels: tuple[Kernel, ...]) -> list[tuple[int, str]]:
    return [(k.count, " ".join(type(op).__name__ for op in k.ops)) for k in kernels]


def test_a_layer_of_llama_is_eight_kernels() -> None:
    assert named(kernels(program_of(LLAMA_8B))) == [
        (1, "Embed RmsNorm"),
        (32, "MatMul MatMul MatMul"),
        (32, "Rope Rope"),
        (32, "Attention"),
        (32, "MatMul"),
        (63, "Add RmsNorm"),
        (32, "MatMul MatMul"),
        (32, "Glu"),
        (32, "MatMul"),
        (1, "Add GatherRows"),
        (1, "RmsNorm"),
        (1, "MatMul"),
    ]


def test_norms_of_heads_join_the_rotation_or_stand_alone() -> None:
    program = program_of(QWEN3_32B)
    assert (64, "RmsNorm Rope RmsNorm Rope") in named(kernels(program))
    apart = named(kernels(program, norms_heads_apart=True))
    assert (128, "Rope") in apart or (64, "Rope") in apart
    assert (64, "RmsNorm") in apart or (128, "RmsNorm") in apart


def test_a_run_of_row_ops_reads_and_writes_each_slot_once() -> None:
    residual_and_norm = next(k for k in kernels(program_of(LLAMA_8B)) if k.count == 63)
    assert residual_and_norm.read_widths == (2 * 4096, 0)  # the residual and what is added to it
    assert residual_and_norm.written_widths == (2 * 4096, 0)  # the new residual and its norm


def test_ranks_exchange_a_sum_after_each_half_of_a_layer() -> None:
    found = kernels(shard_program(program_of(LLAMA_8B), 4))
    exchanged = Counter({type(k.ops[0]).__name__: k.count for k in found if k.kind is KernelKind.COLLECTIVE})
    assert exchanged["AllReduce"] >= 2 * 32
    assert exchanged["AllGather"] == 1  # of logits


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_op_of_every_family_is_in_one_kernel(name: str) -> None:
    program = build_program(FAMILIES[name])
    found = kernels(program)
    counted = Counter(type(op).__name__ for k in found for op in k.ops for _ in range(k.count))
    assert counted == Counter(type(op).__name__ for op in program.ops)
