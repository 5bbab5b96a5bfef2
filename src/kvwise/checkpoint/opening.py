"""From a path to an open checkpoint or a configuration: which container it is, and who describes the model.

Knows which files belong together; leaves their contents to the readers, of which it loads the one that is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from kvwise.checkpoint.checked_file import CheckedFile
from kvwise.checkpoint.checkpoint import Checkpoint
from kvwise.checkpoint.folder import GGUF_PIECE, gguf_in_folder, model_file, refuse_pickle
from kvwise.checkpoint.gguf import GGUF_MAGIC, GgufContents, read_gguf
from kvwise.checkpoint.stored import FileTensor
from kvwise.errors import CheckpointError
from kvwise.spec.model import ModelSpec

Check = Callable[[ModelSpec], None]

CONFIG_FILE: Final = "config.json"
_MAX_PIECES: Final = 500
_ROPE_FACTORS: Final = "rope_freqs.weight"
_MAX_ROPE_FACTORS: Final = 2**12  # one per rotary pair of a head; the widest known head has 128


def open_checkpoint(path: str | Path, *, check: Check | None = None) -> Checkpoint:
    """Open a GGUF file, a safetensors file or index beside its config.json, or a folder that holds one model.

    Reads headers only. `check` is called with the spec before the tensors are looked at. Raises CheckpointError for
    files that are broken, incomplete, ambiguous or pickles, and SpecError for a configuration that can't be
    understood.
    """
    files = ExitStack()
    try:
        return _open(Path(path), files, check or _no_check)
    except BaseException:
        files.close()
        raise


def read_config(path: str | Path) -> dict[str, object]:
    """The object in a config.json, given by its own path or its folder's. Needs no weights.

    Raises CheckpointError if there is none or if it is not sound JSON.
    """
    path = Path(path)
    if path.is_dir():
        found = model_file(path, CONFIG_FILE)
        if found is None:
            raise CheckpointError(f"{path} has no {CONFIG_FILE}", expected="it beside the weights")
        path = found
    from kvwise.checkpoint.strict_json import read_json_object

    with CheckedFile(path) as file:
        return read_json_object(file)


@contextmanager
def open_tensors(path: str | Path) -> Iterator[tuple[FileTensor, ...]]:
    """All tensors of a safetensors folder, index or file by the names the file has, whatever they are: for counting.

    Reads headers only. Raises CheckpointError as open_checkpoint does.
    """
    from kvwise.checkpoint.safetensors import INDEX_FILE, read_safetensors, read_safetensors_folder

    path = Path(path)
    with ExitStack() as files:
        if path.is_dir() or path.name == INDEX_FILE:
            yield read_safetensors_folder(path if path.is_dir() else path.parent, files)
        else:
            yield read_safetensors(files.enter_context(CheckedFile(path)))


@contextmanager
def open_gguf(path: str | Path) -> Iterator[GgufContents]:
    """A GGUF file, or all pieces of the model that it is one of, for counting: tensors may be of any type.

    Reads headers only. Raises CheckpointError as open_checkpoint does, and for a piece that is missing.
    """
    path = Path(path)
    with ExitStack() as files:
        first, *others = (read_gguf(files.enter_context(CheckedFile(p)), counting=True) for p in _pieces(path))
        tensors = tuple(tensor for contents in (first, *others) for tensor in contents.tensors)
        if len({tensor.name for tensor in tensors}) != len(tensors):
            raise CheckpointError(f"{path} and its other pieces hold a tensor twice", expected="pieces of one model")
        yield GgufContents(first.version, first.metadata, tensors)


def _pieces(path: Path) -> list[Path]:
    """The files of the model that `path` is a piece of, in order, as llama.cpp names them; itself where it is whole."""
    match = GGUF_PIECE.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= count <= _MAX_PIECES:
        raise CheckpointError(f"{path} is one of {count} pieces", expected=f"1 to {_MAX_PIECES}")
    pieces = [path.with_name(f"{match['name']}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1)]
    missing = [piece.name for piece in pieces if not piece.exists()]
    if missing:
        raise CheckpointError(
            f"of the model in {path} {', '.join(missing[:3])} are missing", action="download them too"
        )
    return pieces


def _no_check(_: ModelSpec) -> None:
    return None


def _open(path: Path, files: ExitStack, check: Check) -> Checkpoint:
    if not path.is_dir():
        return _open_file(path, files, check)
    gguf = gguf_in_folder(path)
    if gguf is not None:
        return _open_file(gguf, files, check)
    return _open_folder(path, files, check)


def _open_folder(folder: Path, files: ExitStack, check: Check) -> Checkpoint:
    from kvwise.checkpoint.safetensors import read_safetensors_folder
    from kvwise.spec.hf_config import spec_from_config

    config = read_config(folder)
    spec = spec_from_config(config)
    check(spec)
    return Checkpoint(folder, "safetensors", spec, config, read_safetensors_folder(folder, files), files)


def _open_file(path: Path, files: ExitStack, check: Check) -> Checkpoint:
    refuse_pickle(path)
    if path.suffix.lower() == ".json":
        return _open_index(path, files, check)
    file = files.enter_context(CheckedFile(path))
    if path.suffix.lower() == ".gguf" or file.pread(0, min(4, file.size_bytes)) == GGUF_MAGIC:
        return _open_gguf(path, file, files, check)
    if path.suffix.lower() == ".safetensors":
        return _open_safetensors(path, file, files, check)
    raise _no_model_file(path)


def _open_index(path: Path, files: ExitStack, check: Check) -> Checkpoint:
    from kvwise.checkpoint.safetensors import INDEX_FILE

    if path.name != INDEX_FILE:
        raise _no_model_file(path)
    return _open_folder(path.parent, files, check)


def _open_gguf(path: Path, file: CheckedFile, files: ExitStack, check: Check) -> Checkpoint:
    from kvwise.spec.gguf_config import spec_from_gguf

    contents = read_gguf(file)
    names = {tensor.name for tensor in contents.tensors}
    spec = spec_from_gguf(contents.metadata, rope_factors=_rope_factors(contents), tensor_names=names)
    check(spec)
    return Checkpoint(path, "gguf", spec, contents.metadata, contents.tensors, files)


def _open_safetensors(path: Path, file: CheckedFile, files: ExitStack, check: Check) -> Checkpoint:
    from kvwise.checkpoint.safetensors import read_safetensors
    from kvwise.spec.hf_config import spec_from_config

    config = read_config(path.parent)
    spec = spec_from_config(config)
    check(spec)
    return Checkpoint(path, "safetensors", spec, config, read_safetensors(file), files)


def _no_model_file(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is no model file", expected="a .gguf or .safetensors file, or a folder with one model"
    )


def _rope_factors(contents: GgufContents) -> tuple[float, ...] | None:
    """The divisors of the rotary frequencies, where the file brings them along."""
    found = [t for t in contents.tensors if t.name == _ROPE_FACTORS]
    if not found:
        return None
    tensor = found[0]
    if tensor.type_name != "f32" or len(tensor.shape) != 1 or tensor.shape[0] > _MAX_ROPE_FACTORS:
        raise CheckpointError(
            f"tensor {_ROPE_FACTORS} of {tensor.file.path} is {tensor.type_name} of shape {list(tensor.shape)}",
            expected=f"f32 and at most {_MAX_ROPE_FACTORS} elements",
        )
    return struct.unpack(f"<{tensor.shape[0]}f", tensor.file.pread(tensor.offset, tensor.nbytes))
