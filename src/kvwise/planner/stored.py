"""What files hold, counted as stored: weights, scales and zero points, and what is none of the model's.

Reads headers only. A tensor's part is told by its name, as the quantizers write it, and by its dtype; how many
weights a packed element holds, by the dtype or by quantization_config:

    FP8          X.weight F8_E4M3, X.weight_scale(_inv), X.input_scale      DeepSeek V3, compressed-tensors, modelopt
    AWQ, GPTQ    X.qweight I32, X.qzeros I32, X.scales, X.g_idx     32 / bits weights in an element
    packed       X.weight_packed I32, X.weight_scale, X.weight_zero_point, X.weight_shape     compressed-tensors
    NVFP4        X.weight U8 or X.weight_packed U8, X.weight_scale F8_E4M3, X.weight_(global_)scale(_2) F32
    MXFP4        X_blocks U8, X_scales U8                           gpt-oss; X.weight_packed U8, X.weight_scale U8
    fused        X U8 or F8_E4M3, X_weight_scale(_2), X_scale_inv, X_input_scale    experts in one tensor
    bitsandbytes X.weight U8, X.weight.absmax, ... or X.weight I8, X.SCB
    GGUF         blk.N.X.weight of any ggml type, scales inside; NVFP4 blk.N.X.scale beside them

Sources: transformers 5.24.0, quantizers/; github.com/vllm-project/compressed-tensors, compressors/;
huggingface.co/openai/gpt-oss-20b. What is counted is reconciled with the program's parameters; the rest has a reason,
or is reported as unexplained.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvwise.errors import CheckpointError
from kvwise.models import build_program
from kvwise.planner.shares import StoredPiece, stored_pieces
from kvwise.spec.fields import Fields, shown
from kvwise.spec.gguf_config import describes, spec_from_gguf
from kvwise.spec.gguf_families import config_from_gguf
from kvwise.spec.hf_config import spec_from_config
from kvwise.spec.model import ModelSpec, VariedAttentionSpec

if TYPE_CHECKING:
    from kvwise.checkpoint.gguf import GgufContents
    from kvwise.checkpoint.stored import FileTensor
    from kvwise.program.ir import Program


class Part(Enum):
    """What a stored tensor is to the model."""

    WEIGHTS = "weights"
    SCALES = "scales"
    ZERO_POINTS = "zero points"
    ORDER = "orders, shapes and code books of packed weights"
    TIED_HEAD = "the tied head, stored once more"
    BUFFERS = "buffers: masks, rotary frequencies, router corrections"
    MTP = "layers of multi-token prediction"
    MEDIA = "the halves for pictures and sound"
    SHARED_KV = "projections of layers that share K and V"


LOADED: Final = (Part.WEIGHTS, Part.SCALES, Part.ZERO_POINTS, Part.ORDER)  # what an engine holds of a file

_SUFFIXES: Final = (
    (re.compile(r".+\.(qweight|weight_packed)|.+_blocks"), Part.WEIGHTS),
    (
        re.compile(
            r".+[._](weight_scale|scale_inv|weight_scale_2|weight_global_scale|input_scale|input_global_scale|output_scale)|"
            r".+\.(weight_scale_inv|scales|[qkv]_scale|SCB|weight\.absmax|weight\.nested_absmax)|.+_scales|"
            r"blk\.\d+\.(attn|ffn|ssm)_\w+\.scale"
        ),
        Part.SCALES,
    ),
    (re.compile(r".+\.(qzeros|weight_zero_point|input_zero_point)"), Part.ZERO_POINTS),
    (
        re.compile(
            r".+\.(g_idx|weight_g_idx|weight_shape|weight_format|weight\.(nested_)?quant_map|weight\.quant_state\..+)"
        ),
        Part.ORDER,
    ),
)
_NOT_OURS: Final = (
    (
        re.compile(
            r"(model\.)?(vision_tower|vision_model|vision_embed_tokens|visual|multi_modal_projector|audio_tower|"
            r"embed_vision|embed_audio)\..*|(v|a|mm)\..*"
        ),
        Part.MEDIA,
    ),
    (re.compile(r"(model\.)?(mtp|mtp_layers)\..*"), Part.MTP),
    (
        re.compile(
            r".*\.rotary_emb\.inv_freq|.*\.(gate\.)?e_score_correction_bias|.*\.layer_scalar|"
            r"rope_freqs\.weight|rope_factors_(long|short)\.weight|blk\.\d+\.(attn_rot_embd\.weight|exp_probs_b(\.bias)?)|"
            r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)|gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias)"
        ),
        Part.BUFFERS,
    ),
)
_HEAD: Final = re.compile(r"(language_model\.)?(lm_head|embed_out)\.(weight|qweight|weight_packed)")
_LAYER: Final = re.compile(
    r"(?:(?:model\.|language_model\.|model\.language_model\.|language_model\.model\.)?layers|blk)\."
    r"(?P<index>\d{1,6})\.(?P<rest>.+)"
)
_KEYS_AND_VALUES: Final = re.compile(r"self_attn\.(k_proj|v_proj|k_norm|v_norm)\..*")


@dataclass(frozen=True, slots=True)
class StoredPart:
    """All tensors of one part: how many, of which dtypes, and their bytes.

    elements: weights that packed ones hold; of everything else as stored.
    """

    part: Part
    num_tensors: int
    elements: int
    nbytes: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredCount:
    """The files' parts, in the order of Part, and the model's parameters by its program.

    pieces: the bytes that an engine holds, by the weights they belong to.
    """

    parts: tuple[StoredPart, ...]
    formula_parameters: int
    pieces: tuple[StoredPiece, ...] = ()

    def elements(self, *parts: Part) -> int:
        return sum(p.elements for p in self.parts if p.part in parts)

    def nbytes(self, *parts: Part) -> int:
        return sum(p.nbytes for p in self.parts if p.part in parts)

    @property
    def weight_bytes(self) -> int:
        """What an engine holds as it is stored: weights, scales, zero points, orders."""
        return self.nbytes(*LOADED)

    @property
    def file_bytes(self) -> int:
        return sum(p.nbytes for p in self.parts)

    @property
    def file_elements(self) -> int:
        return sum(p.elements for p in self.parts)

    @property
    def unexplained(self) -> int:
        """Weights in the files beyond those that the program has; negative where some are missing."""
        return self.elements(Part.WEIGHTS) - self.formula_parameters

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Of the weights, the largest share first."""
        return next((p.dtypes for p in self.parts if p.part is Part.WEIGHTS), ())

    def differences(self) -> tuple[tuple[str, int], ...]:
        """file_elements - formula_parameters, by reason; they sum to it."""
        rows = [(p.part.value, p.elements) for p in self.parts if p.part is not Part.WEIGHTS and p.elements]
        return (*rows, ("unexplained", self.unexplained)) if self.unexplained else tuple(rows)

    def to_json(self) -> dict[str, object]:
        return {
            "file_bytes": self.file_bytes,
            "file_elements": self.file_elements,
            "formula_parameters": self.formula_parameters,
            "differences": dict(self.differences()),
            "parts": [
                {"part": p.part.name.lower(), "tensors": p.num_tensors, "elements": p.elements, "bytes": p.nbytes,
                 "dtypes": list(p.dtypes)}
                for p in self.parts
            ],
        }  # fmt: skip


def count_stored(path: Path, config: Mapping[str, object], spec: ModelSpec, program: Program) -> StoredCount:
    """Count the safetensors folder, index or file at `path`, which holds the model of `config`.

    Raises CheckpointError for files that are broken, and for packed weights whose bits the config does not say.
    """
    from kvwise.checkpoint.opening import open_tensors

    with open_tensors(path) as tensors:
        return count_tensors(tensors, config, spec, program)


def count_gguf(contents: GgufContents) -> tuple[ModelSpec, Program, StoredCount]:
    """The same of a GGUF file's header, with the model that its metadata describe.

    Raises UnknownArchitecture or SpecError for metadata that no reader understands.
    """
    names = {tensor.name: tensor.shape for tensor in contents.tensors}
    if describes(contents.metadata):
        spec = spec_from_gguf(contents.metadata, tensor_names=names)
    else:
        spec = spec_from_config(config_from_gguf(contents.metadata, names))
    program = build_program(spec)
    return spec, program, count_tensors(contents.tensors, {}, spec, program)


def count_tensors(
    tensors: Iterable[FileTensor], config: Mapping[str, object], spec: ModelSpec, program: Program
) -> StoredCount:
    """Pure: the same of tensors as their headers list them."""
    tensors = list(tensors)
    names = frozenset(t.name for t in tensors)
    reader = _Reader(spec, names, Fields(config))
    sums: dict[Part, list[tuple[FileTensor, int]]] = {}
    for tensor in tensors:
        part = reader.part_of(tensor)
        packed = part in (Part.WEIGHTS, Part.TIED_HEAD, Part.MTP)
        sums.setdefault(part, []).append((tensor, reader.elements(tensor) if packed else math.prod(tensor.shape)))
    parts = tuple(_total(part, sums[part]) for part in Part if part in sums)
    loaded = (tensor for part in LOADED for tensor, _ in sums.get(part, ()))
    return StoredCount(parts, program.num_parameters, stored_pieces(loaded, program))


def _total(part: Part, counted: list[tuple[FileTensor, int]]) -> StoredPart:
    by_dtype: dict[str, int] = {}
    for tensor, _ in counted:
        by_dtype[tensor.type_name] = by_dtype.get(tensor.type_name, 0) + tensor.nbytes
    dtypes = tuple(sorted(by_dtype, key=lambda name: (-by_dtype[name], name)))
    return StoredPart(part, len(counted), sum(n for _, n in counted), sum(t.nbytes for t, _ in counted), dtypes)


@dataclass(frozen=True, slots=True)
class _Reader:
    spec: ModelSpec
    names: frozenset[str]
    config: Fields

    def part_of(self, tensor: FileTensor) -> Part:
        name = tensor.name
        for pattern, part in _NOT_OURS:
            if pattern.fullmatch(name):
                return part
        layer = _LAYER.fullmatch(name)
        if layer is not None and int(layer["index"]) >= self.spec.num_layers:
            return Part.MTP  # DeepSeek and GLM number them after the model's own
        if layer is not None and self._shares_kv(int(layer["index"])) and _KEYS_AND_VALUES.fullmatch(layer["rest"]):
            return Part.SHARED_KV
        if self.spec.tied_embeddings and _HEAD.fullmatch(name) and self._has_embedding():
            return Part.TIED_HEAD
        for pattern, part in _SUFFIXES:
            if pattern.fullmatch(name):
                return part
        return Part.WEIGHTS

    def elements(self, tensor: FileTensor) -> int:
        """Weights that the tensor holds: more than it has elements where several are packed into one."""
        count = math.prod(tensor.shape)
        if tensor.type_name == "I32" and tensor.name.endswith((".qweight", ".weight_packed")):
            return count * 32 // self._bits(tensor.name)
        scales = (f"{tensor.name}_scale", f"{tensor.name}_weight_scale", f"{tensor.name}.absmax")
        four_bits = tensor.name.endswith(("_blocks", ".weight_packed")) or any(s in self.names for s in scales)
        return 2 * count if tensor.type_name == "U8" and four_bits else count

    def _bits(self, name: str) -> int:
        """Bits of an integer weight, from quantization_config: `bits`, or num_bits of all groups alike."""
        quantization = self.config.mapping("quantization_config")
        text = self.config.mapping("text_config")
        if quantization is None and text is not None:
            quantization = text.mapping("quantization_config")
        stated = None if quantization is None else _stated_bits(quantization)
        if stated is None:
            raise CheckpointError(
                f"{shown(name)} holds packed weights, and quantization_config does not say of how many bits",
                expected="bits (AWQ, GPTQ), or the same num_bits in all of config_groups (compressed-tensors)",
            )
        return stated

    def _shares_kv(self, index: int) -> bool:
        mixer = self.spec.layers[index].mixer
        return isinstance(mixer, VariedAttentionSpec) and mixer.kv_layer is not None

    def _has_embedding(self) -> bool:
        """A file with nothing but a head keeps the embedding under the head's name."""
        return any(name.endswith(("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight"))
                   for name in self.names)  # fmt: skip


def _stated_bits(quantization: Fields) -> int | None:
    for name in ("bits", "w_bit"):
        if name in quantization:
            return quantization.integer(name, high=8)
    groups = quantization.mapping("config_groups")
    if groups is None:
        return None
    found = set()
    for name in groups.names():
        group = groups.mapping(name)
        weights = group.mapping("weights") if group is not None else None
        if weights is not None:
            found.add(weights.integer("num_bits", high=8))
    return found.pop() if len(found) == 1 else None
