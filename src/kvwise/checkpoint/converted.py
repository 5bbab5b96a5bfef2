"""A model's weights, some of them in another type than its files store: the same names, converted when they are read.

Knows how; which weights, and to what, it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from kvwise.errors import CheckpointError
from kvwise.frozen import dataclass
from kvwise.spec.dtypes import TensorType
from kvwise.spec.weights import SourceIdentity, Stored, StoredRows, WeightSource

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor as it is held. `nbytes` are the bytes of its rows in that type."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    nbytes: int


class ConvertedWeights:
    """`source` with its tensors in the types of `held`, by name. A weight source.

    What is stored in another type must be floats there; `read` and native loading give the same bits.
    """

    def __init__(self, source: WeightSource, held: Mapping[str, TensorType]) -> None:
        self._source = source
        self.tensors: Mapping[str, Stored] = MappingProxyType(
            {name: _as_held(source.tensors[name], kind) for name, kind in held.items()}
        )

    def read(self, name: str) -> NDArray[np.uint8]:
        """Raises CheckpointError for numbers that are not finite, beside what the source raises."""
        raw, stored, held = self._source.read(name), self._source.tensors[name].type, self.tensors[name].type
        if stored == held:
            return raw
        import numpy as np

        from kvwise.checkpoint.quants import dequantize, quantize

        values = dequantize(raw, stored)
        if not np.isfinite(values).all():
            raise CheckpointError(
                f"{name} holds numbers that are not finite",
                expected=f"finite ones, to convert it to {held.name}",
                action="load the weights as they are stored",
            )
        return quantize(values, held)

    def locate(self, name: str) -> StoredRows:
        return self._source.locate(name)

    def identity(self) -> SourceIdentity | None:
        return self._source.identity()


def _as_held(stored: Stored, kind: TensorType) -> Stored:
    if stored.type == kind:
        return stored
    rows = stored.nbytes // stored.type.row_bytes(stored.shape[-1])
    return HeldTensor(stored.name, stored.shape, kind, rows * kind.row_bytes(stored.shape[-1]))
