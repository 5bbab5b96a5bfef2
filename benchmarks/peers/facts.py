"""What a cell's work is: weight bytes, KV bytes and operations, as kvwise's own program counts them.

The limit of a cell is the longer of two times: its bytes at the bandwidth of their working set, its operations at the
peak of the arithmetic that its weights allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import limits as machine_limits

from kvwise.engine.model import open_model
from kvwise.program.cost import cost_of
from kvwise.spec.shape import StepShape

from .cells import Cell, Entrant

INTEGER: Final = ("8-bit", "4-bit")
FLOATS: Final = ("f32", "bf16", "f16")


@dataclass(frozen=True)
class Work:
    """Of one step: `weight_bytes` as the entrant's own file holds them."""

    weight_bytes: int
    kv_bytes: int
    flops: int


class Facts:
    """Work of any cell of one model. `folder`: its bfloat16 folder, or any GGUF file of it."""

    def __init__(self, file: Path) -> None:
        self._opened = open_model(str(file), allow_download=False)

    @property
    def vocab(self) -> int:
        return self._opened.spec.vocab

    def work(self, cell: Cell, entrant: Entrant, file: Path) -> Work:
        shape = StepShape.prefill(cell.context)
        if cell.kind == "decode":
            shape = StepShape.decode(cell.context, cell.batch)
        weights = self._opened.weight_bytes
        cost = cost_of(self._opened.program, shape, self._opened.kv, weights.__getitem__).total
        return Work(stored_weight_bytes(file), cost.kv_read_bytes if cell.kind == "decode" else 0, cost.flops)

    def close(self) -> None:
        self._opened.close()


def stored_weight_bytes(file: Path) -> int:
    """Bytes that a token reads: all, since embeddings are the head. OpenVINO's lie in one .bin."""
    if file.is_dir():
        names = [*file.glob("*.safetensors")] or [file / "openvino_model.bin"]
        return sum(name.stat().st_size for name in names)
    return file.stat().st_size


def limit_of(cell: Cell, entrant: Entrant, work: Work, limits: dict[str, Any]) -> float | None:
    """Seconds (prefill) or tokens/s (decode) that the machine would allow; None where the cell has no such limit."""
    if cell.kind not in ("prefill", "decode"):
        return None
    rates = limits["arithmetic"]
    kinds = ("int8",) if entrant.weights in INTEGER else FLOATS
    peak = max(rates[kind]["best"] for kind in kinds if kind in rates)
    nbytes = work.weight_bytes + work.kv_bytes
    seconds = max(nbytes / machine_limits.read_rate(limits, nbytes), work.flops / peak)
    return cell.batch / seconds if cell.kind == "decode" else seconds
