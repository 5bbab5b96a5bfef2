"""A model's folder: which files in it may be read, and which of them is the model. Opens nothing.

Nothing outside the folder is ever read. A link may point anywhere inside it; in the hub's cache it may also point
into the same repository's blobs (models--org--name/snapshots/REVISION/file -> ../../blobs/HASH).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from kvwise.errors import CheckpointError, UsageError
from kvwise.spec.fields import shown

PICKLE_SUFFIXES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
GGUF_PIECE: Final = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")  # llama.cpp's names
_SIDECAR_PREFIXES: Final = ("mmproj", "mtp-")  # GGUF files that accompany a model


def in_home(path: str, variable: str) -> Path:
    """`path` with a leading ~ replaced. Raises UsageError where there is no such home, naming the variable to set."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(
            f"there is no home folder for {path}", action=f"set {variable} to a folder that can be written"
        ) from None


def model_file(folder: Path, name: str) -> Path | None:
    """The path of file `name` of the folder, its links checked; None where there is no such file.

    Raises CheckpointError if `name` is not a plain file name or the file lies outside the folder.
    """
    if not name or name in (".", "..") or any(c in name for c in "/\\\0"):
        raise CheckpointError(
            f"file name {shown(name)} in {folder} could leave the folder", expected="a plain file name"
        )
    path = folder / name
    try:
        if not path.is_symlink() and not path.exists():
            return None
        real = path.resolve(strict=True)
        inside = real.is_relative_to(_readable_root(folder))
    except (OSError, RuntimeError, ValueError) as problem:
        raise CheckpointError(f"{path} can't be followed: {problem}", action="download it again") from None
    if not inside:
        raise CheckpointError(
            f"{path} links to {real}", expected="a file inside the model's folder", action="copy the file there"
        )
    return path


def names_with_suffix(folder: Path, *suffixes: str) -> list[str]:
    """Names of the folder's entries that end so and can be shown, sorted.

    Raises CheckpointError if the folder can't be listed.
    """
    try:
        names = [entry.name for entry in folder.iterdir() if entry.name.lower().endswith(suffixes)]
        return sorted(name for name in names if name.isprintable())
    except OSError as problem:
        raise CheckpointError(f"{folder} can't be listed: {problem}") from None


def gguf_in_folder(folder: Path) -> Path | None:
    """The folder's one GGUF model, or the first of its pieces; None where it holds none.

    Raises CheckpointError where it holds several, or one beside safetensors: which is meant is not for us to guess.
    """
    names = [n for n in names_with_suffix(folder, ".gguf") if not n.lower().startswith(_SIDECAR_PREFIXES)]
    others = names_with_suffix(folder, ".safetensors")
    if not names:
        return None
    pieces = [GGUF_PIECE.fullmatch(n) for n in names]
    if len({match and (match["name"], match["count"]) for match in pieces}) == 1 and pieces[0] is not None:
        names = names[:1]
    if len(names) > 1 or others:
        raise CheckpointError(
            f"{folder} holds more than one model: {', '.join((names + others)[:8])}",
            expected="one .gguf file, or config.json and safetensors",
            action="give the path of the file you mean (of a sharded model: its index)",
        )
    return model_file(folder, names[0])


def refuse_pickle(path: Path) -> None:
    """Raise CheckpointError if the name says that the file is a pickle."""
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise CheckpointError(
            f"{path} is a pickle, which can run any code when it is read",
            expected="safetensors or GGUF",
            action="convert it to safetensors where you trust it, or take a repository that has them",
        )


def _readable_root(folder: Path) -> Path:
    """Where links of the folder may point: itself, or in the hub's cache its repository."""
    real = folder.resolve(strict=True)
    if real.parent.name == "snapshots" and real.parent.parent.name.startswith("models--"):
        return real.parent.parent
    return real
