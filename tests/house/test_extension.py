"""The built extension: it is there, and code compiled for one instruction set can't stand in for other code."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
OBJECTS = sorted((REPOSITORY / "build" / "dev").rglob("kernels_*.cpp.o"))
# nm's letters of symbols that the linker merges by name: it keeps one copy and drops the others.
MERGED = re.compile(r"^\w* *[WVuw] (?P<name>.+)$", re.MULTILINE)


def test_the_extension_can_be_loaded() -> None:
    module = importlib.import_module("kvwise.backends.native._native")
    assert Path(str(module.__file__)).parent.name == "native"


@pytest.mark.skipif(not OBJECTS, reason="no objects of an in-place build")
@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")
@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_nothing_compiled_for_an_instruction_set_is_merged_with_code_of_another(path: Path) -> None:
    isa = path.name.removeprefix("kernels_").removesuffix(".cpp.o")
    listed = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=True)
    merged = [found["name"] for found in MERGED.finditer(listed.stdout)]
    assert [name for name in merged if f"kvw::{isa}::" not in name] == []
