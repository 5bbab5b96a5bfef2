"""What `make` says on a machine that lacks something: one line, which names what to install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def bare_machine(tmp_path: Path) -> Path:
    """A tree as just cloned, beside a PATH that holds make, a shell and nothing else."""
    tree, programs = tmp_path / "tree", tmp_path / "programs"
    shutil.copytree(REPOSITORY / "tools", tree / "tools")
    for name in ("Makefile", "pyproject.toml", "CMakeLists.txt"):
        shutil.copy(REPOSITORY / name, tree / name)
    programs.mkdir()
    for name in ("make", "sh"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    return tree


def add_program(tree: Path, name: str, script: str) -> None:
    path = tree.parent / "programs" / name
    path.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    path.chmod(0o755)


def add_python(tree: Path, *, failing_at: str = "", version: str = "") -> None:
    """A python3 that is the one of these tests, except where a check's code holds `failing_at`."""
    lines = []
    if version:
        lines.append(f'case "$1" in -V) echo "Python {version}"; exit 0;; *) exit 1;; esac')
    if failing_at:
        lines.append(f'case "$*" in *{failing_at}*) exit 1;; esac')
    add_program(tree, "python3", "\n".join([*lines, f'exec "{sys.executable}" "$@"']))


def add_compiler(tree: Path) -> None:
    add_program(tree, "c++", "exit 0")


def run_make(tree: Path, *arguments: str) -> str:
    """The output of a make that must fail, without its line break."""
    environment = {"PATH": str(tree.parent / "programs"), "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        ["make", *arguments],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert not (tree / ".venv").exists()
    assert len(done.stdout.splitlines()) == 1, done.stdout
    return done.stdout.strip()


@pytest.mark.parametrize("target", ["run", "test", "build", "lint", "bench"])
def test_no_python(bare_machine: Path, target: str) -> None:
    assert "install python3.11" in run_make(bare_machine, target)


def test_a_python_that_is_too_old(bare_machine: Path) -> None:
    add_python(bare_machine, version="3.9.2")
    line = run_make(bare_machine)
    assert "3.9.2" in line
    assert "PYTHON=" in line


def test_a_named_python_that_is_too_old(bare_machine: Path) -> None:
    add_python(bare_machine, version="3.10.1")
    assert "python3 is Python 3.10.1" in run_make(bare_machine, "PYTHON=python3")


def test_a_named_python_that_is_not_there(bare_machine: Path) -> None:
    add_python(bare_machine)
    assert "PYTHON=python4" in run_make(bare_machine, "PYTHON=python4")


def test_no_venv(bare_machine: Path) -> None:
    add_python(bare_machine, failing_at="ensurepip")
    assert "apt-get install python3-venv" in run_make(bare_machine)


def test_no_headers(bare_machine: Path) -> None:
    add_python(bare_machine, failing_at="Python.h")
    add_compiler(bare_machine)
    assert "apt-get install python3-dev" in run_make(bare_machine)


def test_no_compiler(bare_machine: Path) -> None:
    add_python(bare_machine)
    assert "apt-get install g++" in run_make(bare_machine)


def test_with_everything_the_python_is_named(bare_machine: Path) -> None:
    add_python(bare_machine)
    add_compiler(bare_machine)
    programs = bare_machine.parent / "programs"
    done = subprocess.run(
        ["sh", "tools/prerequisites.sh"],
        cwd=bare_machine,
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == str(programs / "python3")
