"""From what a user names to a model that can be planned: its spec, its program, and what its weights are stored as.

A file, a folder, a config, a name. Headers and configs are read, no weights; where no engine here loads the files they
are counted (stored.py). Knows no machine and no plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kvwise.checkpoint.catalogue import CatalogueModel
from kvwise.errors import ModelNotFound
from kvwise.models import build_program
from kvwise.planner.sizes import published_types, uniform_types, weight_type
from kvwise.planner.stored import StoredCount, count_gguf, count_stored
from kvwise.program.ir import Program
from kvwise.spec.check import check_spec
from kvwise.spec.dtypes import TensorType
from kvwise.spec.gguf_config import describes
from kvwise.spec.hf_config import spec_from_config
from kvwise.spec.model import ModelSpec

_MODELOPT_FILE: Final = "hf_quant_config.json"


@dataclass(frozen=True, slots=True)
class Described:
    """A model with the types its weights are stored in, or the count of its files where no engine here loads them."""

    name: str
    source: str
    spec: ModelSpec
    program: Program
    types: Mapping[str, TensorType]
    stored: StoredCount | None = None


def describe_model(model: str | Path | Mapping[str, object] | ModelSpec) -> Described:
    """What there is to know of `model` from headers and configs. A name: this disk, the catalogue, then the hub.

    Raises ModelNotFound, UsageError, CheckpointError, SpecError or UnknownArchitecture.
    """
    if isinstance(model, ModelSpec):
        return _from_spec(check_spec(model), model.name or model.family, "spec")
    if isinstance(model, Mapping):
        spec = spec_from_config(model)
        return _from_spec(spec, spec.family, "config")
    from kvwise.checkpoint import match_tensors, open_checkpoint, read_config
    from kvwise.checkpoint.names import has_names
    from kvwise.checkpoint.safetensors import INDEX_FILE

    path = _find(model)
    if isinstance(path, CatalogueModel):
        return _from_catalogue(path)
    if path.name == INDEX_FILE:
        path = path.parent
    if path.suffix == ".json" or _holds_only_a_config(path):
        where = path if path.is_dir() else path.parent
        config = read_config(path)
        counted = _counted_on_the_hub(str(model), config) if _is_quantized(where, config) else None
        return counted or _from_spec(spec_from_config(config), where.name or str(model), "config.json")
    counted_gguf = _counted_gguf(path)
    if counted_gguf is not None:
        return counted_gguf
    if path.suffix.lower() == ".safetensors" or (path.is_dir() and not any(path.glob("*.gguf"))):
        config = read_config(path if path.is_dir() else path.parent)
        spec = spec_from_config(config)
        if _is_quantized(path if path.is_dir() else path.parent, config) or not has_names(spec.family):
            return _counted(path, config, spec, str(model))
    with open_checkpoint(path) as checkpoint:
        program = build_program(checkpoint.spec)
        match_tensors(program.expected_shapes, checkpoint)
        types = {name: checkpoint.tensors[name].type for name in program.weights}
        name = checkpoint.spec.name or path.stem
        return Described(name, checkpoint.format, checkpoint.spec, program, types)


def _is_quantized(folder: Path, config: Mapping[str, object]) -> bool:
    """Whether the config says so, its half for text, or the file that modelopt keeps beside it."""
    text = config.get("text_config")
    nested = isinstance(text, Mapping) and "quantization_config" in text
    return nested or "quantization_config" in config or (folder / _MODELOPT_FILE).exists()


def _find(model: str | Path) -> Path | CatalogueModel:
    """What is on this disk, else the catalogue's description, else what the hub gives."""
    from kvwise.checkpoint.catalogue import find_model, near_models
    from kvwise.checkpoint.resolve import resolve_model

    try:
        return resolve_model(model, weights=False, allow_download=False)
    except ModelNotFound as not_here:
        name = str(model)
        known = find_model(name)
        if known is not None:
            return known
        near = ", ".join(near_models(name))
        try:
            return resolve_model(model, weights=False)
        except ModelNotFound as nowhere:
            if not near:
                raise
            action = f"the catalogue has {near}; {nowhere.action or not_here.action}"
            raise ModelNotFound(nowhere.problem, expected=nowhere.expected, action=action) from None


def _from_catalogue(known: CatalogueModel) -> Described:
    spec = spec_from_config(known.config)
    program = build_program(spec)
    types = published_types(program, weight_type(spec.source_dtype), known.stored)
    notes = [*spec.notes, f"from the catalogue: {known.source}"]
    if known.stored:
        stored = " and ".join(f"{what} in {name}" for what, name in known.stored.items())
        notes.append(f"as published: {stored}; scales of 8-bit blocks are not counted")
    return Described(known.id, "catalogue", replace(spec, notes=tuple(notes)), program, types)


def _counted(path: Path, config: Mapping[str, object], spec: ModelSpec, name: str) -> Described:
    described = _from_spec(spec, (path if path.is_dir() else path.parent).name or name, "safetensors")
    return replace(described, stored=count_stored(path, config, spec, described.program))


def _counted_gguf(path: Path) -> Described | None:
    """A GGUF file that no engine here loads: of another family, of types that are not read, or in pieces."""
    from kvwise.checkpoint.folder import gguf_in_folder
    from kvwise.checkpoint.opening import open_gguf

    file = gguf_in_folder(path) if path.is_dir() else path
    if file is None or file.suffix.lower() != ".gguf":
        return None
    with open_gguf(file) as contents:
        pieces = {tensor.file for tensor in contents.tensors}
        if describes(contents.metadata) and len(pieces) == 1 and all(t.type is not None for t in contents.tensors):
            return None
        spec, program, counted = count_gguf(contents)
    types = uniform_types(program, weight_type(spec.source_dtype))
    return Described(spec.name or file.stem, "gguf", spec, program, types, counted)


def _counted_on_the_hub(model: str, config: Mapping[str, object]) -> Described | None:
    """Counted from the headers that the hub holds; None for a path, without the network, or where it fails."""
    from kvwise.checkpoint.hub_cache import HubReference, is_offline
    from kvwise.checkpoint.hub_headers import hub_headers

    reference = None if Path(model).exists() or is_offline() else HubReference.parse(model)
    if reference is None:
        return None
    with suppress(ModelNotFound), hub_headers(reference) as folder:
        return replace(_counted(folder, config, spec_from_config(config), model), name=model, source="hub headers")
    return None


def _holds_only_a_config(path: Path) -> bool:
    return path.is_dir() and not any(path.glob("*.gguf")) and not any(path.glob("*.safetensors"))


def _from_spec(spec: ModelSpec, name: str, source: str) -> Described:
    program = build_program(spec)
    return Described(name, source, spec, program, uniform_types(program, weight_type(spec.source_dtype)))
