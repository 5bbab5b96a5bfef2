"""Small models with random weights on the native backend, and steps written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvwise.backends.native.backend import NATIVE
from kvwise.backends.protocol import LoadedProgram, LoadOptions
from kvwise.checkpoint.unnamed_file import UnnamedFile
from kvwise.program.ir import Program, Role
from kvwise.spec.batch import StepBatch
from kvwise.spec.dtypes import TENSOR_TYPES, TensorType
from kvwise.spec.kv import BLOCK_TOKENS, KV_TYPES, KVCacheSpec
from kvwise.spec.shape import StepLimits
from kvwise.spec.weights import SourceIdentity, StoredRows, WeightSource
from native.matrices import random_matrix

LIMITS = StepLimits(max_tokens=400, max_logits_rows=400, max_requests=8, max_context=400)
NUM_BLOCKS = 64


@dataclass(frozen=True)
class RandomTensor:
    name: str
    shape: tuple[int, ...]
    type: TensorType
    raw: NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        return self.raw.nbytes


class RandomWeights:
    """A WeightSource of matrices in `kinds`, by turns, of about the size that keeps activations near 1; vectors are
    float32."""

    def __init__(self, program: Program, *kinds: str, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        turns = cycle(kinds)
        self.tensors: Mapping[str, RandomTensor] = {
            w.name: _random_tensor(w.name, w.shape, "f32" if w.role is Role.VECTOR else next(turns), rng)
            for w in program.weights.values()
        }
        self._file = UnnamedFile()

    def read(self, name: str) -> NDArray[np.uint8]:
        return self.tensors[name].raw

    def locate(self, name: str) -> StoredRows:
        return self._file.append(self.tensors[name].type, self.tensors[name].raw)

    def identity(self) -> SourceIdentity | None:
        return None


def _random_tensor(name: str, shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> RandomTensor:
    if len(shape) == 1:
        values = (1 + 0.1 * rng.standard_normal((1, *shape))).astype(np.float32)
        return RandomTensor(name, shape, TENSOR_TYPES["f32"], values.view(np.uint8))
    return RandomTensor(name, shape, TENSOR_TYPES[kind], random_matrix(kind, *shape, rng))


def load(
    program: Program,
    source: WeightSource,
    *,
    kv_type: str = "f16",
    threads: int = 1,
    limits: StepLimits = LIMITS,
    num_blocks: int = NUM_BLOCKS,
) -> LoadedProgram:
    types = {name: tensor.type for name, tensor in source.tensors.items()}
    kv = KVCacheSpec(program.kv_layers, KV_TYPES[kv_type])
    options = LoadOptions(num_blocks=num_blocks, limits=limits, threads=threads)
    return NATIVE.load(NATIVE.lower(program, types), source, kv, options)


@dataclass(frozen=True)
class Part:
    """Tokens [start, stop) of a request, whose blocks are `table`; logits of all of them."""

    token_ids: Sequence[int]
    start: int
    stop: int
    table: Sequence[int]


def step(parts: Sequence[Part], copies: Sequence[tuple[int, int]] = ()) -> StepBatch:
    def ints(values: Any) -> NDArray[np.int32]:
        return np.array(values, np.int32)

    positions = [p for part in parts for p in range(part.start, part.stop)]
    slots = [
        part.table[p // BLOCK_TOKENS] * BLOCK_TOKENS + p % BLOCK_TOKENS
        for part in parts
        for p in range(part.start, part.stop)
    ]
    tables = np.zeros((len(parts), max(len(part.table) for part in parts)), np.int32)
    for row, part in zip(tables, parts, strict=True):
        row[: len(part.table)] = part.table
    return StepBatch(
        token_ids=ints([t for part in parts for t in part.token_ids[part.start : part.stop]]),
        positions=ints(positions),
        slot_mapping=ints(slots),
        query_starts=ints(np.cumsum([0, *(part.stop - part.start for part in parts)])),
        context_lens=ints([part.stop for part in parts]),
        block_tables=tables,
        logits_rows=ints(range(len(positions))),
        block_copies=ints(copies).reshape(-1, 2),
    )


def logits_in_chunks(
    model: LoadedProgram, token_ids: Sequence[int], table: Sequence[int], size: int, start: int = 0
) -> NDArray[np.float32]:
    """Logits of positions start.. of one request, computed `size` tokens at a time."""
    pieces = [
        model.run(step([Part(token_ids, at, min(at + size, len(token_ids)), table)])).copy()
        for at in range(start, len(token_ids), size)
    ]
    return np.concatenate(pieces)
