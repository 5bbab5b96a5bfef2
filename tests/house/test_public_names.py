"""The public surface of the package, and what importing it may cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kvwise

SOURCE = Path(kvwise.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
# Each takes tens of milliseconds or more to import; start-up needs none of them.
HEAVY = {
    "numpy",
    "tokenizers",
    "jinja2",
    "huggingface_hub",
    "safetensors",
    "matplotlib",
    "psutil",
    "pydantic",
    "kvwise.backends.native._native",
}


def modules_loaded_by(statement: str) -> set[str]:
    """Names in sys.modules after `statement` ran in a fresh interpreter."""
    code = f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", kvwise.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(kvwise, name) is not None


def test_every_export_is_public_and_listed_by_dir() -> None:
    assert set(kvwise._EXPORTS) | {"__version__"} == set(kvwise.__all__)
    assert set(kvwise.__all__) <= set(dir(kvwise))


def test_the_type_checker_sees_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: f"{node.module}:{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == kvwise._EXPORTS


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Llm'"):
        _ = kvwise.Llm  # type: ignore[attr-defined]


def test_importing_the_package_loads_no_layer() -> None:
    ours = {name for name in modules_loaded_by("import kvwise") if name.startswith("kvwise")}
    assert ours == {"kvwise"}


@pytest.mark.parametrize("statement", ["import kvwise", "import kvwise.cli.main"])
def test_start_up_imports_nothing_heavy(statement: str) -> None:
    assert modules_loaded_by(statement) & HEAVY == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_says_what_it_owns(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
