"""Headers of a hub repository's safetensors, without their data: what is needed to count a model before it is here.

huggingface_hub asks for byte ranges; only headers travel. They become files that are all header, their data a hole,
so that the one checked reader reads them like any other. Takes no room on disk beyond the headers.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvwise.checkpoint.folder import model_file
from kvwise.checkpoint.hub_cache import HubReference
from kvwise.checkpoint.safetensors import INDEX_FILE
from kvwise.errors import CheckpointError, ModelNotFound
from kvwise.spec.fields import shown

if TYPE_CHECKING:
    from huggingface_hub import SafetensorsRepoMetadata


@contextmanager
def hub_headers(reference: HubReference) -> Iterator[Path]:
    """A folder with the index and headers of the repository's safetensors; gone afterwards.

    Raises ModelNotFound when the hub does not give them, CheckpointError for headers that can't be.
    """
    found = _ask(reference)
    with tempfile.TemporaryDirectory(prefix="kvwise-headers-") as name:
        folder = Path(name)
        for file_name, contents in found.files_metadata.items():
            _write_header(folder, file_name, contents.tensors)
        if found.sharded:
            (folder / INDEX_FILE).write_text(json.dumps({"weight_map": found.weight_map}))
        yield folder


def _ask(reference: HubReference) -> SafetensorsRepoMetadata:
    from huggingface_hub import HfApi

    try:
        return HfApi().get_safetensors_metadata(reference.repo, revision=reference.revision)
    except Exception as problem:  # the library's own errors, and those of the network libraries below it
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]
        raise ModelNotFound(f"the hub did not give the headers of {reference.repo}: {reason}") from None


def _write_header(folder: Path, name: str, tensors: dict[str, Any]) -> None:
    """`tensors`: by name, with dtype, shape and data_offsets, as the hub's file says; checked when they are read."""
    model_file(folder, name)  # refuses names that could leave the folder
    entries, end = {}, 0
    for tensor_name, tensor in tensors.items():
        begin, stop = tensor.data_offsets
        entries[tensor_name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, stop]}
        end = max(end, stop)
    header = json.dumps(entries).encode()
    try:
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + end)
    except (OSError, ValueError, OverflowError) as problem:
        raise CheckpointError(f"the header of {shown(name)} can't be written: {problem}") from None
