"""What each device holds of files that are only counted: every stored tensor, shared out with the weights it holds.

A tensor's name says which weights of the program it holds, whatever it is called there and however it is quantized:
scales and zero points go with their matrix, a fused one with all that is in it. A device then has as much of the
tensor as its program has of those weights. Names: transformers 5.24.0, the state dicts of each family; GGUF: llama.cpp,
gguf-py/gguf/constants.py and tensor_mapping.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvwise.planner.sizes import stored_bytes, weight_type
from kvwise.spec.dtypes import TENSOR_TYPES, TensorType
from kvwise.units import ceil_div

if TYPE_CHECKING:
    from kvwise.checkpoint.stored import FileTensor
    from kvwise.program.ir import Program

_LAYER: Final = re.compile(r"(?:.*\.)?(?:layers|h|blk)\.(\d{1,6})\.(.+)")
_FOUR_BITS_AND_SCALES: Final = 6.0  # bits of a weight; the widest of four bits are NF4 and groups of 16
_EIGHT_BITS_AND_SCALES: Final = 12.0

# Outside of layers: a weight's name, or with a dot how those of all layers end. The first row that matches counts.
_TABLES: Final = tuple(
    (re.compile(f".*(?:{pattern}).*"), ending)
    for pattern, ending in (
        ("embed_tokens_per_layer|per_layer_token_embd", ".input.embed"),
        ("per_layer_projection_norm|per_layer_proj_norm", "input_norm"),
        ("per_layer_model_proj", ".input.projection"),
        ("embed_positions|wpe|position_embd", "positions"),
        ("norm|ln_f", "final_norm"),
        ("embed_tokens|wte|embed_in|word_embeddings|embeddings|token_embd", "embed"),
        ("lm_head|embed_out|output", "lm_head"),
    )
)
# In layers: the stems of the weights, as programs call them; of several those that the layer has.
_STEMS: Final = tuple(
    (re.compile(f".*(?:{pattern}).*"), tuple(stems.split()))
    for pattern, stems in (
        (r"sink", "attn.sinks"),
        (r"mixer\.norm|linear_attn\.norm|ssm_norm", "mamba.norm linear.norm"),
        (r"A_log|ssm_a$", "linear.a_log mamba.a_log"),
        (r"dt_bias|ssm_dt", "linear.dt_bias mamba.dt_bias"),
        (r"mixer\.D$|ssm_d$", "mamba.d"),
        (r"norm|ln_|layer_scalar|router|indexer|inp_gate|\.proj\.|per_layer_", ""),
        (r"q_a_proj|kv_a_proj|attn_q_a|attn_kv_a|shared_expert_gate|(mlp|mixer|moe)\.gate\.|gate_inp|latent", ""),
        (r"experts.*(down|w2)|down_exps", "mlp.experts.down"),
        (r"shared_experts?\.down|down_shexp", "mlp.shared.down"),
        (r"shared_experts?\.(gate|up)|(gate|up)_shexp", "mlp.shared.gate mlp.shared.up"),
        (r"experts.*(gate|up|w1|w3)|(gate|up|gate_up)_exps", "mlp.experts.gate mlp.experts.up"),
        (r"kv_b_proj|attn_kv_b|attn_[kv]_b", "attn.kv_up"),
        (r"qkv_proj|query_key_value|c_attn|attn_qkv", "attn.q attn.k attn.v linear.qkv"),
        (r"in_proj_qkvz|ssm_in\.", "linear.qkv linear.z mamba.z mamba.xbc mamba.dt"),
        (r"mixer\.in_proj", "mamba.z mamba.xbc mamba.dt"),
        (r"in_proj_qkv", "linear.qkv"),
        (r"in_proj_z|attn_gate", "linear.z"),
        (r"in_proj_(a|b|ba)\b|ssm_(ba|beta|alpha)", "linear.beta linear.decay"),
        (r"conv1d", "linear.conv mamba.conv"),
        (r"linear_attn\.out_proj|ssm_out", "linear.o mamba.o"),
        (r"q_proj|q_b_proj|attn_q", "attn.q attn.gate"),
        (r"k_proj|attn_k", "attn.k"),
        (r"v_proj|attn_v", "attn.v"),
        (r"mixer\.out_proj", "mamba.o"),
        (r"o_proj|out_proj|\.dense\.|attn\.c_proj|attn_output", "attn.o"),
        (r"down_proj|fc2|dense_4h_to_h|mlp\.c_proj|ffn_down", "mlp.down"),
        (r"gate_up_proj|gate_proj|up_proj|fc1|dense_h_to_4h|c_fc|ffn_gate|ffn_up", "mlp.gate mlp.up"),
    )
)


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """Bytes that hold the weights `names` of the program; without names, of `layer` and whole on every rank.

    known: whether the tensor's name said so; otherwise the names are those of the whole layer. dtypes: of the tensors,
    the largest share first.
    """

    names: tuple[str, ...]
    layer: int | None
    known: bool
    nbytes: int
    dtypes: tuple[str, ...]


def stored_pieces(tensors: Iterable[FileTensor], program: Program) -> tuple[StoredPiece, ...]:
    """Which weights of `program` the tensors hold, those of the same weights summed. Pure."""
    sums: dict[tuple[tuple[str, ...], int | None, bool], dict[str, int]] = {}
    for tensor in tensors:
        layer, names, known = _weights_of(tensor.name, program)
        by_dtype = sums.setdefault((names, layer, known), {})
        by_dtype[tensor.type_name] = by_dtype.get(tensor.type_name, 0) + tensor.nbytes
    return tuple(
        StoredPiece(*key, sum(by_dtype.values()), tuple(sorted(by_dtype, key=lambda d: -by_dtype[d])))
        for key, by_dtype in sums.items()
    )


def stored_weights(
    pieces: Iterable[StoredPiece], program: Program, plain: Mapping[str, TensorType]
) -> tuple[dict[str, TensorType], dict[str, int]]:
    """Each weight's type and bytes, for a price: as the pieces say, else `plain`. Pure.

    A packed type is told by its bits and the type of its scales; its bytes are the file's.
    """
    types, sizes = dict(plain), stored_bytes(program, plain)
    for piece in pieces:
        elements = {name: program.weights[name].num_elements for name in piece.names if piece.known}
        total = sum(elements.values())
        for name, n in elements.items():
            sizes[name] = piece.nbytes * n // total
            types[name] = _type_of(piece, 8 * piece.nbytes / total, plain[name])
    return types, sizes


def _type_of(piece: StoredPiece, bits: float, plain: TensorType) -> TensorType:
    first = piece.dtypes[0].lower()
    if first.startswith("f8"):
        return weight_type("fp8")
    if first in TENSOR_TYPES and first != "i8":
        return TENSOR_TYPES[first]
    if bits > _EIGHT_BITS_AND_SCALES:
        return plain
    if bits > _FOUR_BITS_AND_SCALES:
        return weight_type("int8")
    if "U8" in piece.dtypes and "F8_E4M3" in piece.dtypes:
        return weight_type("nvfp4")
    return weight_type("mxfp4" if piece.dtypes == ("U8",) else "int4_g128")


def share_bytes(pieces: Iterable[StoredPiece], whole: Program, part: Program) -> int:
    """What one rank of the stage `part` holds of the pieces. Padding of the vocabulary is held too. Pure."""
    total = 0
    for piece in pieces:
        if piece.names:
            mine = sum(part.weights[name].num_elements for name in piece.names if name in part.weights)
            total += ceil_div(piece.nbytes * mine, sum(whole.weights[name].num_elements for name in piece.names))
        elif f"layers.{piece.layer}." in _layers(part):
            total += piece.nbytes
    return total


def _layers(part: Program) -> frozenset[str]:
    return frozenset(".".join(name.split(".")[:2]) + "." for name in part.weights)


def _weights_of(file_name: str, program: Program) -> tuple[int | None, tuple[str, ...], bool]:
    """(layer, names of the program's weights, whether they are known)."""
    part = ".bias" if file_name.endswith("bias") else ".weight"
    match = _LAYER.fullmatch(file_name)
    if match is None:
        ending = next((ending for pattern, ending in _TABLES if pattern.fullmatch(file_name)), "")
        of_layers = ending.startswith(".")
        names = [n for n in program.weights if (n.endswith(ending + part) if of_layers else n == ending + part)]
        return None, tuple(names or program.weights), bool(names)
    layer, leaf = int(match[1]), match[2]
    prefix = f"layers.{layer}."
    found = next((stems for pattern, stems in _STEMS if pattern.fullmatch(leaf)), None)
    if found == ():
        return layer, (), True
    other = ".weight" if part == ".bias" else ".bias"
    for ending in (part, "", other):
        names = [prefix + stem + ending for stem in found or () if prefix + stem + ending in program.weights]
        if names:
            return layer, tuple(names), True
    return layer, tuple(n for n in program.weights if n.startswith(prefix)), False
