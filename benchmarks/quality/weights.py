"""The kinds of weights that are measured, and a GGUF file of each, made from the bundled model's own numbers.

The bundled file is Q4_1, and its dequantized weights are the float model that everything is measured against: no
other weights of this model come in a package. So they lie on a grid of 16 steps per 32 weights, which flatters
whatever can hold that grid (Q4_1 itself, and nearly so Q5_1 and Q8_0): for those a row shows what is added by rounding
activations and scales, not what a quantizer would lose on weights as they were trained.

SmolLM2's rows of 576 are no whole blocks of 256, so a K type is measured in the down projections alone (rows of 1,536,
a fifth of the weights), the rest in float32; Q8_0 and Q4_0 there, too, for comparison.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from peers.gguf_files import in_gguf_order, uniform, write_gguf
from peers.sources import BundledSource, Floats

from kvwise.checkpoint.bundled import fetch_bundled
from kvwise.checkpoint.quants import QUANTIZERS, quantize
from kvwise.spec.dtypes import TensorType

BENCHMARKS: Final = Path(__file__).resolve().parents[1]
DOWN: Final = "mlp.down.weight"


@dataclass(frozen=True)
class Weights:
    """A row of the table. `down_only`: the down projections are in `type`, everything else in float32.

    `converted`: our own type, made of float32 weights while they are loaded.
    """

    name: str
    type: str | None
    down_only: bool = False
    converted: bool = False

    @property
    def load_options(self) -> dict[str, Any]:
        """For LLM and open_model."""
        return {"weights": self.type} if self.converted else {}

    def type_of(self, tensor: str) -> str:
        assert self.type is not None
        if self.down_only:
            return self.type if tensor.endswith(DOWN) else "f32"
        return uniform(self.type)(tensor)


FLOAT: Final = Weights("f32", "f32")
BUNDLED: Final = Weights("as bundled (q4_1)", None)
DOWN_TYPES: Final = ("q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "q3_k", "q2_k")
WEIGHTS: Final = (
    FLOAT,
    *(Weights(kind, kind) for kind in ("f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")),
    BUNDLED,
    *(Weights(kind, kind, converted=True) for kind in ("i8", "i4_64") if kind in QUANTIZERS),
    *(Weights(f"{kind} down", kind, down_only=True) for kind in DOWN_TYPES),
)


class LlamaCpp:
    """Runs quality.llamacpp in its environment."""

    def __init__(self, python: Path) -> None:
        self._python = python

    def run(self, do: str, job: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "job.json")
            path.write_text(json.dumps(job), "utf-8")
            environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
            command = [str(self._python), "-m", "quality.llamacpp", do, str(path)]
            subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)


def ensure(folder: Path, weights: Weights, llamacpp: LlamaCpp | None) -> Path | None:
    """The file of a kind of weights, made when missing; None where that takes llama.cpp's quantizers."""
    if weights.type is None:
        return fetch_bundled()
    if weights.converted:
        return ensure(folder, FLOAT, llamacpp)
    path = folder / f"smollm2-135m-exact-{weights.name.replace(' ', '-')}.gguf"
    if path.exists():
        return path
    if weights.type not in QUANTIZERS and llamacpp is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.gguf")
    source = BundledSource(exact=True)
    encode = None if weights.type in QUANTIZERS or llamacpp is None else _Encoder(source, weights, llamacpp).encode
    write_gguf(source, partial, weights.type_of, encode)
    return partial.rename(path)


class _Encoder:
    """Blocks by llama.cpp's quantizers, all tensors of a file in one run; what is not in its type is quantized here."""

    def __init__(self, source: BundledSource, weights: Weights, llamacpp: LlamaCpp) -> None:
        assert weights.type is not None
        shapes = source.shape.tensors()
        chosen = [n for n, size in shapes.items() if len(size) > 1 and weights.type_of(n) == weights.type]
        self._type = weights.type
        with tempfile.TemporaryDirectory() as folder:
            values, out = Path(folder, "values.npz"), Path(folder, "out.npz")
            np.savez(values, **{n: in_gguf_order(n, source.values(n), source.shape) for n in chosen})  # type: ignore[arg-type]
            llamacpp.run("quantize", {"type": _ggml_name(self._type), "values": str(values), "out": str(out)})
            with np.load(out) as arrays:
                self._blocks: dict[str, NDArray[np.uint8]] = {name: arrays[name] for name in arrays.files}

    def encode(self, name: str, values: Floats, tensor_type: TensorType) -> NDArray[np.uint8]:
        return self._blocks[name] if tensor_type.name == self._type else quantize(values, tensor_type)


def _ggml_name(kind: str) -> str:
    return kind.replace("_k", "_K")
