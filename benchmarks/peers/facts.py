"""What a cell's work is: weight bytes, KV bytes and operations, as kvwise's own program counts them.

The limit of a cell is the longer of two times: its bytes at the bandwidth of their working set, its operations at the
peak of the arithmetic that its weights allow. Beside it stand the two shares alone: of the bandwidth, by weight bytes
only, and of the arithmetic peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import limits as machine_limits

from kvwise.checkpoint import open_checkpoint
from kvwise.engine.model import open_model
from kvwise.program.cost import cost_of
from kvwise.spec.shape import StepShape

from .cells import Cell

INTEGER: Final = ("8-bit", "4-bit")
FLOATS: Final = ("f32", "bf16", "f16")


@dataclass(frozen=True)
class Work:
    """Of one step: `weight_bytes` as the entrant holds them."""

    weight_bytes: int
    kv_bytes: int
    flops: int


class Facts:
    """Work of any cell of one model, by the program of kvwise's own file of it."""

    def __init__(self, file: Path) -> None:
        self._opened = open_model(str(file), allow_download=False)

    def work(self, cell: Cell, weight_bytes: int) -> dict[str, int] | None:
        """As a row holds it; None for a cell that is no step."""
        if cell.kind not in ("prefill", "decode"):
            return None
        shape = StepShape.prefill(cell.context)
        if cell.kind == "decode":
            shape = StepShape.decode(cell.context, cell.batch)
        weights = self._opened.weight_bytes
        cost = cost_of(self._opened.program, shape, self._opened.kv, weights.__getitem__).total
        kv_bytes = cost.kv_read_bytes if cell.kind == "decode" else 0
        return asdict(Work(weight_bytes, kv_bytes, cost.flops))

    def close(self) -> None:
        self._opened.close()


def stored_weight_bytes(file: Path) -> int:
    """Bytes that a token reads of a peer's file: all, since embeddings are the head. OpenVINO's lie in one .bin."""
    if file.is_dir():
        names = [*file.glob("*.safetensors")] or [file / "openvino_model.bin"]
        return sum(name.stat().st_size for name in names)
    with open_checkpoint(file) as checkpoint:
        return sum(tensor.nbytes for tensor in checkpoint.tensors.values())


def held_weight_bytes(file: Path, open_options: Mapping[str, Any]) -> int:
    """Bytes that kvwise reads for a token, with what loading makes of the file's weights."""
    with open_model(str(file), allow_download=False, **open_options) as opened:
        return sum(opened.weight_bytes.values())


def with_limits(rows: list[dict[str, Any]], limits: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows with `limit`, in the row's unit; `of_limit`, the share of it that was reached; `of_read`, `of_peak`."""
    return [{**row, **_limit(row, limits)} for row in rows]


def _limit(row: dict[str, Any], limits: dict[str, Any]) -> dict[str, float | None]:
    found: dict[str, float | None] = dict.fromkeys(("limit", "of_limit", "of_read", "of_peak"))
    if row["work"] is None:
        return found
    work = Work(**row["work"])
    rates = limits["arithmetic"]
    kinds = ("int8",) if row["weights"] in INTEGER else FLOATS
    peak = max(rates[kind]["best"] for kind in kinds if kind in rates)
    nbytes = work.weight_bytes + work.kv_bytes
    least_s = max(nbytes / machine_limits.read_rate(limits, nbytes), work.flops / peak)
    decodes = row["kind"] == "decode"
    found["limit"] = row["batch"] / least_s if decodes else least_s
    if row["median"] is None:
        return found
    step_s = row["batch"] / row["median"] if decodes else row["median"]
    found["of_limit"] = least_s / step_s
    if decodes:
        found["of_read"] = work.weight_bytes / step_s / machine_limits.read_rate(limits, work.weight_bytes)
    found["of_peak"] = work.flops / step_s / peak
    return found
