"""A model's weights by canonical name, whatever file they lie in.

Owns the mapping from names to byte ranges and the lifetime of the open files. Knows no arithmetic on weights and
no program: match_tensors is told what to expect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

from kvwise.checkpoint.names import Format, canonical_name, reason_ignored
from kvwise.checkpoint.row_order import INTERLEAVED_ARCHITECTURES, check_pairs, interleaved_to_half, rotary_heads
from kvwise.checkpoint.stored import FileTensor, StoredTensor
from kvwise.errors import CheckpointError
from kvwise.spec.fields import shown
from kvwise.spec.model import ModelSpec
from kvwise.spec.weights import SourceIdentity, StoredRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_COMPARED_ROWS: Final = 64  # a head that was trained apart differs from the embedding in every row
_LISTED_DIFFERENCES: Final = 5


class Checkpoint:
    """An open model, made by open_checkpoint; a context manager.

    format: the container. spec: what the model is. metadata: GGUF metadata or config.json, as read.
    tensors: by canonical name, in file order. ignored: file name -> why the tensor is rightly not used.
    unknown: file names that nothing accounts for, which match_tensors refuses.
    """

    def __init__(
        self,
        path: Path,
        file_format: Format,
        spec: ModelSpec,
        metadata: Mapping[str, object],
        stored: Collection[FileTensor],
        files: ExitStack,
    ) -> None:
        self.path, self.format, self.spec = path, file_format, spec
        self.metadata = MappingProxyType(dict(metadata))
        self._files = files
        self._sources, ignored, self.unknown = _by_canonical_name(stored, spec.family, file_format)
        self._tied_head: FileTensor | None = None
        head = self._sources.pop("lm_head.weight", None) if spec.tied_embeddings else None
        if head is not None and "embed.weight" in self._sources:
            self._tied_head, ignored[head.name] = head, "the embedding once more, which is tied to it"
        elif head is not None:
            # A writer that stores shared tensors once may have kept the head's name.
            self._sources["embed.weight"] = head
        self.tensors = MappingProxyType({name: _as_stored(name, t) for name, t in self._sources.items()})
        self.ignored = MappingProxyType(ignored)
        self._interleaved = file_format == "gguf" and metadata.get("general.architecture") in INTERLEAVED_ARCHITECTURES

    def read(self, name: str) -> NDArray[np.uint8]:
        """A copy of a tensor's raw bytes, read-only: [rows, row_bytes], a vector being one row.

        Raises CheckpointError if the file shrank, or if a head stored beside tied embeddings differs from them.
        """
        import numpy as np

        source, stored = self._sources[name], self.locate(name)
        raw = np.frombuffer(source.file.pread(source.offset, source.nbytes), np.uint8)
        if stored.interleaved_heads:
            raw = interleaved_to_half(raw, self.tensors[name].shape[0], stored.interleaved_heads)
        raw.flags.writeable = False
        return raw.reshape(self.tensors[name].num_rows, -1)

    def locate(self, name: str) -> StoredRows:
        """Where a tensor's rows lie, until close. Raises CheckpointError as `read` does for tied embeddings."""
        source = self._sources[name]
        if name == "embed.weight" and self._tied_head is not None:
            _check_tied(source, self._tied_head)
        heads = rotary_heads(name, self.spec) if self._interleaved else None
        if heads is not None:
            check_pairs(source.shape[0], heads)
        return StoredRows(self.tensors[name].type, source.file.descriptor, source.offset, heads or 0)

    def identity(self) -> SourceIdentity:
        """Of the files that hold the tensors, in order. Raises CheckpointError if one shrank."""
        files = dict.fromkeys(source.file for source in self._sources.values())
        places = [str(file.path.resolve()) for file in files]
        return SourceIdentity("\n".join(places), " ".join(file.fingerprint() for file in files))

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def match_tensors(expected: Mapping[str, tuple[int, ...]], checkpoint: Checkpoint) -> None:
    """Check that the checkpoint holds exactly the tensors of `expected` (canonical name -> shape), and no others.

    Raises one CheckpointError that names the first few differences.
    """
    found = checkpoint.tensors
    differences = [f"{name} is missing" for name in expected if name not in found]
    differences += [
        f"{name} has shape {list(found[name].shape)} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name].shape != shape
    ]
    differences += [f"{found[name].file_name} is unexpected" for name in found if name not in expected]
    differences += [f"{shown(name)} is unexpected" for name in checkpoint.unknown]
    if not differences:
        return
    listed = ", ".join(differences[:_LISTED_DIFFERENCES])
    rest = len(differences) - _LISTED_DIFFERENCES
    raise CheckpointError(
        f"{checkpoint.path} does not hold the tensors of a {checkpoint.spec.family} model of "
        f"{checkpoint.spec.num_layers} layers: {listed}" + (f", and {rest} more" if rest > 0 else ""),
        expected=f"{len(expected)} tensors of the shapes that its configuration implies",
    )


def _by_canonical_name(
    stored: Collection[FileTensor], family: str, file_format: Format
) -> tuple[dict[str, FileTensor], dict[str, str], tuple[str, ...]]:
    """The family's tensors by canonical name, reasons for ignored ones by file name, names of all others.

    Raises CheckpointError if two tensors have the same canonical name.
    """
    named: dict[str, FileTensor] = {}
    ignored: dict[str, str] = {}
    unknown: list[str] = []
    for tensor in stored:
        name = canonical_name(tensor.name, family, file_format)
        if reason := reason_ignored(tensor.name, file_format):
            ignored[tensor.name] = reason
        elif name is None:
            unknown.append(tensor.name)
        elif name in named:
            both = f"{shown(named[name].name)} and {shown(tensor.name)}"
            raise CheckpointError(f"{tensor.file.path} holds {name} twice, as {both}")
        else:
            named[name] = tensor
    return named, ignored, tuple(unknown)


def _as_stored(name: str, source: FileTensor) -> StoredTensor:
    if source.type is None:
        raise CheckpointError(
            f"tensor {shown(source.name)} of {source.file.path} is stored as {source.type_name}",
            expected="F32, F16 or BF16",
            action="use a checkpoint that is not quantized, or a GGUF file",
        )
    if not source.nbytes:
        raise CheckpointError(f"tensor {shown(source.name)} of {source.file.path} holds no bytes")
    return StoredTensor(name, source.name, source.shape, source.type, source.nbytes)


def _check_tied(embedding: FileTensor, head: FileTensor) -> None:
    """Raise CheckpointError if the stored head is not the embedding: rows spread over both are compared."""
    same = (head.shape, head.type) == (embedding.shape, embedding.type)
    num_rows = embedding.shape[0]
    row_bytes = embedding.nbytes // num_rows
    for row in range(0, num_rows, max(1, num_rows // _COMPARED_ROWS)) if same else ():
        at = row * row_bytes
        same = same and (
            embedding.file.pread(embedding.offset + at, row_bytes) == head.file.pread(head.offset + at, row_bytes)
        )
    if not same:
        raise CheckpointError(
            f"{head.file.path} stores {head.name} that differs from {embedding.name}, but the configuration ties them",
            expected="equal tensors",
            action='set "tie_word_embeddings": false in config.json if the head is its own',
        )
