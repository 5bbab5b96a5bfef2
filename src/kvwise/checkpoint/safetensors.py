"""The safetensors container, single and sharded with an index: the list of tensors. Knows no name's meaning.

Format: huggingface.co/docs/safetensors: 8 bytes of header length, a JSON header, then tensors without gaps.
Index: {"metadata": {"total_size": bytes}, "weight_map": {tensor: shard}} in model.safetensors.index.json.
"""

from __future__ import annotations

import math
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from kvwise.checkpoint.checked_file import CheckedFile
from kvwise.checkpoint.folder import PICKLE_SUFFIXES, model_file, names_with_suffix, refuse_pickle
from kvwise.checkpoint.stored import FileTensor
from kvwise.checkpoint.strict_json import MAX_JSON_BYTES, parse_json_object, read_json_index
from kvwise.errors import CheckpointError
from kvwise.spec.dtypes import TENSOR_TYPES
from kvwise.spec.fields import shown

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
_SHARD_NAME: Final = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_MAX_SHARDS: Final = 256  # each takes two file descriptors of usually 1,024; Llama 3.1 405B has 191
_MAX_DIMS: Final = 8

# dtype -> (bits of an element, kvwise's type if it reads it)
_DTYPES: Final = {
    "F32": (32, "f32"), "F16": (16, "f16"), "BF16": (16, "bf16"),
    "F64": (64, None), "C64": (64, None), "I64": (64, None), "U64": (64, None), "I32": (32, None),
    "U32": (32, None), "I16": (16, None), "U16": (16, None), "I8": (8, None), "U8": (8, None), "BOOL": (8, None),
    "F8_E4M3": (8, None), "F8_E5M2": (8, None), "F8_E8M0": (8, None), "F8_E4M3FNUZ": (8, None),
    "F8_E5M2FNUZ": (8, None), "F6_E2M3": (6, None), "F6_E3M2": (6, None), "F4": (4, None),
}  # fmt: skip


def read_safetensors(file: CheckedFile) -> tuple[FileTensor, ...]:
    """The tensors of one file, in the order of their bytes. Raises CheckpointError for a broken file."""
    header, data_start = _read_header(file)
    header.pop("__metadata__", None)  # free text of the writer; nothing of ours depends on it
    tensors = [_read_entry(file, name, entry, data_start) for name, entry in header.items()]
    tensors.sort(key=lambda t: (t.offset, t.nbytes))
    end = data_start
    for tensor in tensors:
        if tensor.offset != end:
            kind = "overlaps the one before" if tensor.offset < end else "leaves a gap before it"
            raise _broken(file, f"tensor {shown(tensor.name)} {kind}")
        end += tensor.nbytes
    if end > file.size_bytes:
        raise CheckpointError(
            f"{file.path} is truncated: its tensors end at byte {end}",
            expected=f"at most the file's {file.size_bytes} bytes",
            action="download it again",
        )
    if end < file.size_bytes:
        raise _broken(file, f"{file.size_bytes - end} bytes after the last tensor belong to none")
    return tuple(tensors)


def read_safetensors_folder(folder: Path, files: ExitStack) -> tuple[FileTensor, ...]:
    """All tensors of the folder's model: the shards of its index, or its single file.

    Opened files are closed by `files`. Raises CheckpointError where index and shards disagree, a shard is missing
    or outside the folder, or where files beside them make the model ambiguous.
    """
    index_path = model_file(folder, INDEX_FILE)
    if index_path is None:
        return read_safetensors(files.enter_context(CheckedFile(_single_file(folder))))
    with CheckedFile(index_path) as index_file:
        index = read_json_index(index_file)
    weight_map = _weight_map(index, index_path)
    shard_paths = _shard_paths(folder, weight_map)
    tensors: dict[str, FileTensor] = {}
    for shard_name, path in shard_paths.items():
        for tensor in read_safetensors(files.enter_context(CheckedFile(path))):
            _check_belongs(tensor, shard_name, weight_map, tensors)
            tensors[tensor.name] = tensor
    for name, shard_name in weight_map.items():
        if name not in tensors:
            raise CheckpointError(f"{index_path} lists {shown(name)}, but {shard_name} does not hold it")
    _check_total_size(index, index_path, sum(t.nbytes for t in tensors.values()))
    return tuple(tensors.values())


def missing_weight_files(folder: Path) -> list[str]:
    """Names of weight files that the folder's model needs and does not have; [] if it is complete."""
    index_path = model_file(folder, INDEX_FILE)
    if index_path is None:
        return [] if names_with_suffix(folder, ".safetensors") else [SINGLE_FILE]
    with CheckedFile(index_path) as index_file:
        shards = set(_weight_map(read_json_index(index_file), index_path).values())
    return sorted(name for name in shards if model_file(folder, name) is None)


def _broken(file: CheckedFile, problem: str, expected: str = "") -> CheckpointError:
    return CheckpointError(f"{file.path} is not a sound safetensors file: {problem}", expected=expected)


def _read_header(file: CheckedFile) -> tuple[dict[str, object], int]:
    """The header's object and the offset of the first tensor byte."""
    if file.size_bytes < 10:
        raise _broken(file, f"it has {file.size_bytes} bytes", expected="at least 10")
    length = int.from_bytes(file.pread(0, 8), "little")
    longest = min(file.size_bytes - 8, MAX_JSON_BYTES)
    if length > longest:
        raise _broken(file, f"its header claims {length} bytes", expected=f"at most {longest}")
    raw = file.pread(8, length)
    if not raw.startswith(b"{"):
        raise _broken(file, f"its header starts with {bytes(raw[:4])!r}", expected="'{'")
    return parse_json_object(raw, f"the header of {file.path}"), 8 + length


def _read_entry(file: CheckedFile, name: str, entry: object, data_start: int) -> FileTensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _broken(file, f"entry {shown(name)}", expected="dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise _broken(file, f"tensor {shown(name)} has dtype {shown(dtype)}", expected=f"one of {', '.join(_DTYPES)}")
    if not _are_sizes(shape) or len(shape) > _MAX_DIMS:
        raise _broken(file, f"the shape of tensor {shown(name)}", expected=f"a list of at most {_MAX_DIMS} sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _broken(file, f"the data_offsets of tensor {shown(name)}", expected="[begin, end]")
    bits, kvwise_type = _DTYPES[dtype]
    begin, end = offsets
    if math.prod(shape) * bits != (end - begin) * 8:
        raise _broken(
            file,
            f"tensor {shown(name)} of shape {shape} and dtype {dtype} has {end - begin} bytes",
            expected=f"{math.prod(shape) * bits / 8:g}",
        )
    tensor_type = TENSOR_TYPES[kvwise_type] if kvwise_type else None
    return FileTensor(name, tuple(shape), tensor_type, dtype, file, data_start + begin, end - begin)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _single_file(folder: Path) -> Path:
    names = names_with_suffix(folder, ".safetensors")
    if SINGLE_FILE in names:
        names = [SINGLE_FILE]
    if len(names) > 1:
        raise CheckpointError(
            f"{folder} holds {len(names)} safetensors files ({', '.join(names[:4])}, ...) and no {INDEX_FILE}",
            expected="one file, or an index that lists its shards",
        )
    path = model_file(folder, names[0]) if names else None
    if path is None:
        pickles = names_with_suffix(folder, *PICKLE_SUFFIXES)
        if pickles:
            refuse_pickle(folder / pickles[0])
        raise CheckpointError(f"{folder} holds no weights", expected=f"{SINGLE_FILE}, or {INDEX_FILE} and its shards")
    return path


def _weight_map(index: dict[str, object], path: Path) -> dict[str, str]:
    """Tensor name -> shard name. Every shard is a *.safetensors, and there are not too many."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map", expected="an object of tensor names and shard names")
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            raise CheckpointError(f"{path} puts {shown(name)} into {shown(shard)}", expected="the name of a file")
    shards = set(weight_map.values())
    if len(shards) > _MAX_SHARDS:
        raise CheckpointError(f"{path} lists {len(shards)} shards", expected=f"at most {_MAX_SHARDS}")
    for shard in shards:
        if not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{path} lists {shown(shard)} as a shard", expected="a safetensors file, never a pickle"
            )
    return weight_map


def _shard_paths(folder: Path, weight_map: dict[str, str]) -> dict[str, Path]:
    """Shard name -> real path. Raises CheckpointError for a missing, escaping, stale or duplicate shard."""
    paths: dict[str, Path] = {}
    for name in sorted(set(weight_map.values())):
        path = model_file(folder, name)
        if path is None:
            raise CheckpointError(
                f"{folder} lacks shard {shown(name)}", expected="every shard of the index", action="download it again"
            )
        paths[name] = path
    stale = [n for n in names_with_suffix(folder, ".safetensors") if _SHARD_NAME.fullmatch(n) and n not in paths]
    if stale:
        raise CheckpointError(
            f"{folder} holds {stale[0]}, which {INDEX_FILE} does not list: a stale or duplicate copy of weights",
            expected="the index's shards only",
            action="remove the file or the index, whichever is old",
        )
    return paths


def _check_belongs(
    tensor: FileTensor, shard_name: str, weight_map: dict[str, str], seen: dict[str, FileTensor]
) -> None:
    if tensor.name in seen:
        raise CheckpointError(
            f"tensor {shown(tensor.name)} is in both {seen[tensor.name].file.path} and {tensor.file.path}"
        )
    if weight_map.get(tensor.name) != shard_name:
        listed = weight_map.get(tensor.name)
        raise CheckpointError(
            f"{tensor.file.path} holds tensor {shown(tensor.name)}",
            expected=f"it in {listed}, as {INDEX_FILE} says" if listed else f"only tensors that {INDEX_FILE} lists",
        )


def _check_total_size(index: dict[str, object], path: Path, total_bytes: int) -> None:
    facts = index.get("metadata")
    claimed = facts.get("total_size") if isinstance(facts, dict) else None
    if claimed is not None and claimed != total_bytes:
        raise CheckpointError(
            f"{path} says total_size {shown(claimed)}, but its shards hold {total_bytes} bytes of tensors",
            action="download the model again, or mend the index",
        )
