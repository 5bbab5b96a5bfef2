"""From what a user types to files on this disk: a path, the bundled model, the hub's cache, the hub.

Owns the order in which places are tried and the list of what is here. Opens no weights. The hub is reached through
huggingface_hub only, which is imported when it is needed, and never for files that could run code.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kvwise.checkpoint.folder import gguf_in_folder, model_file, names_with_suffix, refuse_pickle
from kvwise.checkpoint.hub_cache import (
    HubReference,
    cached_repositories,
    cached_snapshot,
    hub_cache_dir,
    is_offline,
)
from kvwise.errors import CheckpointError, ModelNotFound, UsageError
from kvwise.frozen import dataclass
from kvwise.spec.fields import shown

_CONFIG: Final = "config.json"
_TEXT_PATTERNS: Final = [
    _CONFIG, "hf_quant_config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja", "chat_template.json",
]  # fmt: skip
_HUB_TIMEOUT_S: Final = 10.0  # as huggingface_hub waits for a file's header
_WEIGHT_PATTERNS: Final = ["model*.safetensors", "model.safetensors.index.json"]


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this disk. `name` is what resolve_model takes; `source` says where it lies; `nbytes` its weights."""

    name: str
    path: Path
    source: str
    nbytes: int


def resolve_model(
    name: str | Path,
    *,
    allow_download: bool = True,
    weights: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """The file or folder that `name` means, for open_checkpoint; with `weights` False for read_config alone.

    Tried in this order: a path, the bundled model's name, the hub's cache, the hub (unless HF_HUB_OFFLINE is set or
    `allow_download` is False). May download; `progress` is told what, as a phrase for people.
    Raises ModelNotFound, which says where it looked, CheckpointError for a folder that holds several models or a path
    that can't be followed, and UsageError for what is no name at all.
    """
    if not isinstance(name, (str, Path)):
        raise UsageError(f"the model is {shown(name)}", expected="a path or a name")
    name = str(name)
    from kvwise.checkpoint.bundled import BUNDLED_NAME, bundled_path, fetch_bundled

    path = _existing_path(name)
    if path is not None:
        refuse_pickle(path)
        return _model_in(path) if path.is_dir() else path
    if name.lower() == BUNDLED_NAME:
        present = bundled_path()
        if present is None and not allow_download:
            raise ModelNotFound(f"{BUNDLED_NAME} is not here yet", action="run it once with downloads allowed")
        return present or fetch_bundled(progress)
    looked = ["a file or folder of that name", f"the bundled model {BUNDLED_NAME}"]
    reference = None if name.startswith(("/", ".", "~")) else HubReference.parse(name)
    if reference is not None:
        cached = _cached_model(reference, weights)
        if cached is not None:
            return cached
        looked.append(f"the hub's cache {hub_cache_dir()}")
        if allow_download and not is_offline():
            if progress:
                progress(f"downloading {name} from the Hugging Face hub")
            return _download(reference, weights)
        looked.append("not the hub: " + ("HF_HUB_OFFLINE is set" if is_offline() else "downloads are off"))
    raise ModelNotFound(
        f"no model {shown(name)}; looked for {', '.join(looked)}",
        expected="a path, a bundled name, or ORG/NAME[/FILE.gguf][@REVISION] on the hub",
        action="`kvwise models` lists what is here",
    )


def list_local_models() -> list[LocalModel]:
    """Every model that can be opened without the network: bundled, kvwise's cache, the hub's cache."""
    from kvwise.checkpoint.bundled import BUNDLED_NAME, bundled_path, cache_dir

    bundled = bundled_path()
    models = [LocalModel(BUNDLED_NAME, bundled, "bundled", bundled.stat().st_size)] if bundled else []
    own = cache_dir() / "models"
    others = [own / name for name in names_with_suffix(own, ".gguf")] if os.path.isdir(own) else []
    models += [LocalModel(str(p), p, "kvwise's cache", p.stat().st_size) for p in others if p != bundled and p.exists()]
    for repo in cached_repositories():
        models.extend(_models_of_repository(repo))
    return models


def _existing_path(name: str) -> Path | None:
    """The path that `name` is, if there is one. Raises CheckpointError for one that is there and can't be followed."""
    try:
        path = Path(name).expanduser()
        if not name or not os.path.lexists(path):
            _check_reachable(path)
            return None
        path.stat()
        return path
    except (ValueError, RuntimeError):  # a null byte, an unknown user
        return None
    except OSError as problem:
        if problem.errno == errno.ENAMETOOLONG:
            return None
        if problem.errno in (errno.ENOENT, errno.ELOOP):
            raise CheckpointError(f"{path} is a link that leads nowhere", action="mend it, or give the file") from None
        raise CheckpointError(f"{path} can't be reached: {problem.strerror}") from None


def _check_reachable(path: Path) -> None:
    """Raise PermissionError where a folder may not be looked into, which otherwise reads as 'no such file'."""
    try:
        path.lstat()
    except PermissionError:
        raise
    except OSError:
        return


def _model_in(folder: Path) -> Path:
    return gguf_in_folder(folder) or folder


def _cached_model(reference: HubReference, weights: bool) -> Path | None:
    """The reference's model in the hub's cache, None if anything of it is missing."""
    snapshot = cached_snapshot(reference)
    if snapshot is None:
        return None
    if reference.file is not None:
        return model_file(snapshot, reference.file)
    if model_file(snapshot, _CONFIG) is None:
        return gguf_in_folder(snapshot)
    return None if weights and _missing_weights(snapshot) else snapshot


def _missing_weights(folder: Path) -> list[str]:
    from kvwise.checkpoint.safetensors import missing_weight_files

    return missing_weight_files(folder)


def _download(reference: HubReference, weights: bool) -> Path:
    from huggingface_hub import hf_hub_download, model_info, snapshot_download

    repo, revision, cache = reference.repo, reference.revision, hub_cache_dir()
    patterns = _TEXT_PATTERNS + (_WEIGHT_PATTERNS if weights else [])
    try:
        if reference.file is not None:
            return Path(hf_hub_download(repo, reference.file, revision=revision, cache_dir=cache))
        # snapshot_download asks the same without a limit: a hub that accepts and never answers would hold us for ever.
        model_info(repo, revision=revision, timeout=_HUB_TIMEOUT_S)
        folder = Path(snapshot_download(repo, revision=revision, cache_dir=cache, allow_patterns=patterns))
    except Exception as problem:  # the library's own errors, and those of three network libraries below it
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]
        raise ModelNotFound(
            f"no model {repo} here, and the hub did not give it: {reason}",
            action="check the name and the network, or log in with `hf auth login` if access is restricted",
        ) from None
    missing = [_CONFIG] if model_file(folder, _CONFIG) is None else _missing_weights(folder) if weights else []
    if missing:
        raise ModelNotFound(
            f"{repo} has no {', '.join(missing[:3])} on the hub",
            expected="a config.json with safetensors",
            action=f"for a repository of GGUF files give {repo}/FILE.gguf",
        )
    return folder


def _models_of_repository(repo: str) -> Iterator[LocalModel]:
    snapshot = cached_snapshot(HubReference(repo))
    if snapshot is None:
        return
    try:
        for name in names_with_suffix(snapshot, ".gguf"):
            path = model_file(snapshot, name)
            if path is not None:
                yield LocalModel(f"{repo}/{name}", path, "hub cache", path.stat().st_size)
        if model_file(snapshot, _CONFIG) is not None and not _missing_weights(snapshot):
            files = [model_file(snapshot, name) for name in names_with_suffix(snapshot, ".safetensors")]
            yield LocalModel(repo, snapshot, "hub cache", sum(f.stat().st_size for f in files if f))
    except (CheckpointError, OSError):
        return  # a broken download is no model; opening it by name says what is wrong with it
