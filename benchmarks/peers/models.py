"""Every model in every format that a peer reads: where it lies, made when missing. Knows nothing of timing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kvwise.checkpoint.bundled import fetch_bundled

from .folders import write_folder, write_w8a8
from .gguf_files import uniform, write_gguf
from .sources import shape_of, source_of

GGUF_TYPES: Final = ("q8_0", "q4_0", "bf16", "f16")
FORMATS: Final = ("hf", "w8a8", *(f"gguf-{t}" for t in GGUF_TYPES), "gguf-bundled", "ov-int8", "ov-int4", "ov-fp16")


def ensure(work: Path, model: str, file: str, exporter: Path | None = None) -> Path:
    """The path of a model in a format, made when missing. `exporter`: optimum-cli, for OpenVINO's formats."""
    if file == "gguf-bundled":
        return fetch_bundled()
    kind, _, detail = file.partition("-")
    name = f"{model}-{detail}.gguf" if kind == "gguf" else f"{model}-{file}"
    path = work / "models" / name
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "ov":
        group = 128 if shape_of(model).hidden % 128 == 0 else 64
        _export_openvino(ensure(work, model, "hf"), path, detail, group, exporter)
        return path
    source = source_of(model)
    with _renamed_when_done(path) as partial:
        if kind == "gguf":
            write_gguf(source, partial, uniform(detail))
        else:
            partial.mkdir()
            (write_folder if kind == "hf" else write_w8a8)(source, partial)
    return path


def _export_openvino(folder: Path, path: Path, weights: str, group: int, exporter: Path | None) -> None:
    """optimum-cli's defaults for the kind of weights; `group` elements share a 4-bit scale (its default is 128)."""
    if exporter is None:
        raise ValueError(f"{path.name} needs optimum-cli")
    with _renamed_when_done(path) as partial:
        command = [str(exporter), "export", "openvino", "-m", str(folder), "--task", "text-generation-with-past"]
        command += ["--weight-format", weights, *(["--group-size", str(group)] if weights == "int4" else [])]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        environment.pop("PYTHONPATH", None)
        log = path.with_name(path.name + ".log")
        with log.open("wb") as file:
            done = subprocess.run(
                [*command, str(partial)],
                stdout=file,
                stderr=file,
                env=environment,
                check=False,
            )
        if done.returncode:
            raise RuntimeError(f"optimum-cli failed, see {log}")


@contextmanager
def _renamed_when_done(path: Path) -> Iterator[Path]:
    """A temporary neighbour that takes the name only when whole."""
    partial = path.with_name(f"{path.stem}.partial{path.suffix}" if path.suffix == ".gguf" else f"{path.name}.partial")
    _remove(partial)
    try:
        yield partial
        partial.rename(path)
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
