"""Stored tensors shared out to devices: as the program's weights are, whatever they are called and stored as."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

import kvwise
from kvwise.checkpoint.stored import FileTensor
from kvwise.errors import UsageError
from kvwise.models import build_program
from kvwise.planner.shares import share_bytes, stored_pieces, stored_weights
from kvwise.planner.sizes import uniform_types, weight_type
from kvwise.planner.stored import LOADED, count_tensors
from kvwise.program.ir import Program
from kvwise.program.shard import shard_program
from kvwise.program.stages import split_stages
from kvwise.spec.hf_config import spec_from_config
from planner.safetensors_headers import llama_matrices, plain_tensors, write_headers
from planner.test_saved_families import HOST, SAVED


@dataclass(frozen=True)
class Tensor:
    """What counting looks at of a tensor."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    nbytes: int


def tensors_of(saved: dict[str, Any]) -> list[FileTensor]:
    rows = [Tensor(n, tuple(s), d, 2 * math.prod(s)) for n, (d, s) in saved["tensors"].items()]
    return cast(list[FileTensor], rows)


def parts_of(program: Program, ranks: int, stages: int) -> tuple[Program, ...]:
    try:
        return split_stages(shard_program(program, ranks), stages)
    except UsageError:
        return ()


@pytest.mark.parametrize("saved", SAVED, ids=lambda r: r["config"]["model_type"])
def test_files_of_every_family_are_shared_out_exactly_as_their_programs(saved: dict[str, Any]) -> None:
    spec = spec_from_config(saved["config"])
    program = build_program(spec)
    count = count_tensors(tensors_of(saved), saved["config"], spec, program)
    assert all(piece.known for piece in count.pieces)
    assert sum(piece.nbytes for piece in count.pieces) == count.nbytes(*LOADED)
    cuts = [(ranks, stages) for ranks in (1, 2, 4) for stages in (1, 2, 3)]
    tried = [part for cut in cuts for part in parts_of(program, *cut)]
    assert len(tried) > 1 or spec.num_layers == 1
    for part in tried:
        assert share_bytes(count.pieces, program, part) == 2 * part.num_parameters


def test_scales_and_zero_points_go_with_their_matrix(tmp_path: Path) -> None:
    """AWQ: 4-bit matrices in int32, scales and zero points of groups of 128; 16 bits for the rest."""
    layers, hidden, kv_width, inner = 2, 1024, 256, 2048
    tensors = plain_tensors(layers, hidden, 512)
    for name, (out, width) in llama_matrices(layers, hidden, kv_width, inner).items():
        tensors[f"{name}.qweight"] = ("I32", (width, out // 8))
        tensors[f"{name}.qzeros"] = ("I32", (width // 128, out // 8))
        tensors[f"{name}.scales"] = ("F16", (width // 128, out))
    config = {
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": inner,
        "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 512,
        "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128},
    }  # fmt: skip
    folder = str(write_headers(tmp_path, config, tensors))
    alone = kvwise.plan(folder, host=HOST)
    matrix_bytes = sum(out * width for out, width in llama_matrices(layers, hidden, kv_width, inner).values())
    matrix_bytes = matrix_bytes // 2 + matrix_bytes // 128 * 2 + matrix_bytes // 256
    tables, norms = 2 * 512 * hidden * 2, (2 * layers + 1) * hidden * 2
    assert alone.weight_bytes == matrix_bytes + tables + norms
    for ranks in (2, 4):
        p = kvwise.plan(folder, host=HOST, on=f"a10g:{ranks}")
        assert p.placed is not None
        copies = 1 if ranks == 2 else 2  # of the two KV heads
        kv_bytes = matrix_bytes * 2 * kv_width * hidden // (2 * hidden**2 + 2 * kv_width * hidden + 3 * hidden * inner)
        expected = (matrix_bytes + tables + (copies - 1) * kv_bytes) // ranks + norms
        assert abs(p.placed.fullest.row("weights") - expected) <= 64  # bytes rounded up, matrix by matrix


def test_tensors_of_no_known_name_are_shared_out_as_their_layer_and_said_to_be() -> None:
    config = next(r["config"] for r in SAVED if r["config"]["model_type"] == "qwen3_moe")
    program = build_program(spec_from_config(config))
    odd = cast(list[FileTensor], [Tensor("model.layers.0.what_is_this", (1000,), "F16", 2000)])
    (piece,) = stored_pieces(odd, program)
    assert not piece.known
    held = share_bytes([piece], program, shard_program(program, 2))
    assert 1000 <= held < 2000


@pytest.mark.parametrize(
    ("packed", "scales", "name"),
    [
        (("I32", 8), [("F16", 128, 2), ("I32", 128, 0.5)], "int4_g128"),
        (("U8", 2), [("F8_E4M3", 16, 1)], "nvfp4"),
        (("U8", 2), [("U8", 32, 1)], "mxfp4"),
        (("F8_E4M3", 1), [("F32", 128 * 128, 4)], "fp8"),
        (("I8", 1), [("F16", 1024, 2)], "int8"),
        (("BF16", 1), [], "bf16"),
        (("q4_k", 1), [], "q4_k"),
    ],
)
def test_a_price_reads_weights_as_they_are_stored(
    packed: tuple[str, int], scales: list[tuple[str, int, float]], name: str
) -> None:
    config = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 1, "intermediate_size": 1024,
              "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 64}  # fmt: skip
    program = build_program(spec_from_config(config))
    plain = uniform_types(program, weight_type("bf16"))
    elements = 1024 * 1024
    bits = {"I32": 32, "U8": 8, "F8_E4M3": 8, "I8": 8, "BF16": 16, "q4_k": 4.5}[packed[0]]
    stem = "model.layers.0.self_attn.o_proj."
    tensors = [Tensor(f"{stem}a", (), packed[0], int(elements // packed[1] * bits / 8))]
    tensors += [
        Tensor(f"{stem}s{i}", (), d, int(elements // group * size)) for i, (d, group, size) in enumerate(scales)
    ]
    types, sizes = stored_weights(stored_pieces(cast(list[FileTensor], tensors), program), program, plain)
    assert types["layers.0.attn.o.weight"].name == name
    assert sizes["layers.0.attn.o.weight"] == sum(tensor.nbytes for tensor in tensors)
    assert types["layers.0.attn.q.weight"].name == "bf16"
    assert sizes["layers.0.attn.q.weight"] == 2 * elements
