"""What must not stand in a tracked file: where one machine keeps things, or which mirror it fetches from."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
# In two pieces each, so that this file does not hold what it looks for.
MACHINE_PATHS = [r"/" r"work/", r"/" r"root/", r"/" r"home/\w", r"/" r"opt/\w", r"/" r"Users/\w"]
REGISTRY_HOSTS = [r"pypi\." r"org", r"python" r"hosted\.org", r"npm" r"js\.(org|com)", r"debian\." r"org"]
FORBIDDEN = re.compile("|".join(MACHINE_PATHS + REGISTRY_HOSTS))


def tracked_files() -> list[Path]:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True)
    return [REPOSITORY / name for name in listed.stdout.decode().split("\0") if name]


def test_no_machine_path_and_no_registry_host() -> None:
    found = []
    for path in tracked_files():
        if not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", errors="replace")
        found += [f"{path.relative_to(REPOSITORY)}: {match.group()}" for match in FORBIDDEN.finditer(text)]
    assert found == []


def test_no_weights_and_no_builds() -> None:
    suffixes = {".so", ".o", ".gguf", ".safetensors", ".whl", ".pyc"}
    big = [path for path in tracked_files() if path.suffix in suffixes and path.stat().st_size > 1 << 20]
    builds = [path for path in tracked_files() if path.suffix in {".so", ".o", ".whl", ".pyc"}]
    assert (big, builds) == ([], [])
