"""The seam between a program and the machine: what a backend promises, and what the engine may assume.

A backend reads the same Program as every other. It keeps the physical layout of weights, K and V to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kvwise.frozen import dataclass
from kvwise.program.ir import Program
from kvwise.spec.dtypes import TensorType
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.shape import StepLimits
from kvwise.spec.weights import WeightSource

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvwise.spec.batch import StepBatch

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes that a backend will hold, exact, known before a weight is read.

    weights: as repacked; kv_pool: blocks · bytes per block; arena: activations and scratch; logits: R_max · vocab · 4;
    tables: rotary tables and block-table staging; states: what requests hold once, whatever their length.
    """

    weights_bytes: int
    kv_pool_bytes: int
    arena_bytes: int
    logits_bytes: int
    tables_bytes: int
    states_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        held = self.weights_bytes + self.kv_pool_bytes + self.arena_bytes + self.logits_bytes + self.tables_bytes
        return held + self.states_bytes


@dataclass(frozen=True, slots=True)
class Buffer:
    """A range of this process's memory that belongs to a ledger row ('weights', 'kv_pool', 'arena', ...)."""

    row: str
    address: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load. `threads` includes the calling one; `progress` is called from it, at least at 0 and at the end.

    meanwhile: called once by the same thread, while others read weights where the backend has any to do it.
    weight_cache: a folder to keep weights in as they are held, and to take them from. notify: told, in a phrase, what
    a user should know and need not act on.
    """

    num_blocks: int
    limits: StepLimits
    threads: int = 1
    progress: Progress | None = None
    meanwhile: Callable[[], None] | None = None
    weight_cache: Path | None = None
    notify: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file that weights are kept in as they are held, whether it is there yet or not. nbytes: of all of it."""

    path: Path
    nbytes: int


class LoadedProgram(Protocol):
    """A program with its weights and its KV pool, ready to compute steps. Not thread-safe: one step at a time."""

    @property
    def program(self) -> Program:
        """The program as lowered: what is really run, and priced."""
        ...

    def run(self, batch: StepBatch) -> NDArray[np.float32]:
        """Compute one step; writes K and V of the batch's tokens into their slots.

        Returns logits [R, vocab], valid until the next call. Raises BackendError when the batch exceeds the limits
        the program was loaded with, or names a token, slot or block that does not exist.
        """
        ...

    def buffers(self) -> tuple[Buffer, ...]:
        """Every large allocation, for the ledger to measure."""
        ...

    def close(self) -> None:
        """Give all memory back. Idempotent; nothing else may be called afterwards."""
        ...


class Backend(Protocol):
    """Stateless: turns programs into loaded programs."""

    @property
    def name(self) -> str: ...

    @property
    def kv_types(self) -> tuple[str, ...]:
        """KV types it can store."""
        ...

    def lower(self, program: Program, types: Mapping[str, TensorType]) -> Program:
        """The rewrites this backend runs `program` with, given how each weight is stored. Pure."""
        ...

    def weight_bytes(self, program: Program, types: Mapping[str, TensorType]) -> dict[str, int]:
        """Bytes of each weight as this backend holds and reads it. Pure."""
        ...

    def memory_needs(
        self, program: Program, types: Mapping[str, TensorType], kv: KVCacheSpec, options: LoadOptions
    ) -> MemoryNeeds:
        """Exact bytes of everything `load` will allocate; `program` is as lowered. Pure."""
        ...

    def kept_file(
        self, program: Program, source: WeightSource, kv: KVCacheSpec, options: LoadOptions
    ) -> KeptFile | None:
        """Where `load` keeps and finds these weights with `options.weight_cache`; None where it keeps none."""
        ...

    def load(self, program: Program, source: WeightSource, kv: KVCacheSpec, options: LoadOptions) -> LoadedProgram:
        """Read, repack and hold the weights; allocate the pool and the arena. `program` is as lowered."""
        ...
