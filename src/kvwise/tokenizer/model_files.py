"""Reads the small text files beside a model's weights. Owns the rule that nothing outside the folder is read.

The folder may be in the hub's cache, where files are links into the same repository's blobs
(models--org--name/snapshots/REVISION/file -> ../../blobs/HASH).
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Final

from kvwise.errors import TokenizerError
from kvwise.spec.fields import unique_keys

MAX_VOCABULARY_BYTES: Final = 2**27  # four times Gemma's tokenizer.json
MAX_SETTINGS_BYTES: Final = 2**23  # a tokenizer_config.json that lists thousands of added tokens has 2 MiB


def read_text(folder: Path, name: str, limit_bytes: int) -> str | None:
    """The text of a file, None where there is none.

    Raises TokenizerError if it lies outside the folder, is no regular file, is longer than the limit or not UTF-8.
    """
    path = folder / name
    try:
        real = path.resolve(strict=True)
        root = folder.resolve(strict=True)
        if root.parent.name == "snapshots" and root.parent.parent.name.startswith("models--"):
            root = root.parent.parent
        if not real.is_relative_to(root):
            raise TokenizerError(f"{path} links out of the folder", expected="a file inside it")
        if not stat.S_ISREG(real.stat().st_mode):
            raise TokenizerError(f"{path} is not a regular file")
        with real.open("rb") as file:
            raw = file.read(limit_bytes + 1)
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError) as problem:
        raise TokenizerError(f"{path} can't be read: {problem}") from None
    if len(raw) > limit_bytes:
        raise TokenizerError(f"{path} is too large", expected=f"at most {limit_bytes} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise TokenizerError(f"{path} is not UTF-8 ({problem.reason} at byte {problem.start})") from None


def parse_json_object(text: str, where: str) -> dict[str, object]:
    """Raises TokenizerError for anything but one object with no key twice."""
    try:
        value = json.loads(text, object_pairs_hook=unique_keys)
    except RecursionError:
        raise TokenizerError(f"{where} is nested too deeply") from None
    except ValueError as problem:
        raise TokenizerError(f"{where} is not sound JSON: {problem}") from None
    if not isinstance(value, dict):
        raise TokenizerError(f"{where} holds a {type(value).__name__}", expected="a JSON object")
    return value


def read_settings(folder: Path, name: str) -> dict[str, object]:
    """A small JSON file, {} where there is none."""
    text = read_text(folder, name, MAX_SETTINGS_BYTES)
    return {} if text is None else parse_json_object(text, str(folder / name))
