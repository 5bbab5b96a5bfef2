"""The Hugging Face hub's cache on this disk, read without the network and without importing huggingface_hub.

    <cache>/models--ORG--NAME/refs/REVISION          holds a commit
    <cache>/models--ORG--NAME/snapshots/COMMIT/FILE  links to ../../blobs/HASH

Layout and variables: huggingface.co/docs/huggingface_hub, guides/manage-cache and environment variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from kvwise.checkpoint.folder import in_home
from kvwise.frozen import dataclass

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_NAME: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_REFERENCE: Final = re.compile(
    rf"(?P<repo>{_NAME}/{_NAME})(?:/(?P<file>{_NAME}\.gguf))?(?:@(?P<revision>[A-Za-z0-9_][A-Za-z0-9_./-]{{0,200}}))?"
)


@dataclass(frozen=True, slots=True)
class HubReference:
    """ORG/NAME, of it one GGUF file or the safetensors model, at a branch, tag or commit."""

    repo: str
    file: str | None = None
    revision: str = "main"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """ORG/NAME[/FILE.gguf][@REVISION]; None for anything else, and for all that could climb out of a path."""
        found = _REFERENCE.fullmatch(name)
        if found is None or ".." in name or "--" in found["repo"]:
            return None
        return cls(found["repo"], found["file"], found["revision"] or "main")


def hub_cache_dir() -> Path:
    """$HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub."""
    if own := os.environ.get("HF_HUB_CACHE"):
        return in_home(own, "HF_HUB_CACHE")
    if home := os.environ.get("HF_HOME"):
        return in_home(home, "HF_HOME") / "hub"
    return in_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "HF_HOME") / "huggingface" / "hub"


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def cached_snapshot(reference: HubReference) -> Path | None:
    """The folder of the reference's snapshot in the cache; None if it is not there. It may be incomplete."""
    folder = hub_cache_dir() / f"models--{reference.repo.replace('/', '--')}"
    commit = reference.revision
    if not _COMMIT.fullmatch(commit):
        try:
            commit = (folder / "refs" / commit).read_text("ascii").strip()
        except (OSError, ValueError):
            return None
        if not _COMMIT.fullmatch(commit):
            return None
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def cached_repositories() -> Iterator[str]:
    """ORG/NAME of every model repository in the cache, in order of name."""
    try:
        names = sorted(entry.name for entry in hub_cache_dir().iterdir())
    except OSError:
        return
    for name in names:
        kind, *parts = name.split("--")
        if kind == "models" and len(parts) == 2:
            yield "/".join(parts)
