"""Models that no file holds, served by the real backend and the real engine: random weights, or a file's, changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvwise.backends.native.backend import NATIVE
from kvwise.backends.price.price import Pricer
from kvwise.backends.protocol import LoadedProgram, LoadOptions
from kvwise.checkpoint.quants import quantize
from kvwise.checkpoint.unnamed_file import UnnamedFile
from kvwise.engine.engine import Engine
from kvwise.engine.executor import ProgramExecutor
from kvwise.models import build_program
from kvwise.program.ir import Program, Role
from kvwise.spec.dtypes import TENSOR_TYPES, TensorType
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.model import Activation, AttentionSpec, LayerSpec, MlpSpec, ModelSpec, NormSpec, RopeSpec
from kvwise.spec.shape import StepLimits
from kvwise.spec.weights import SourceIdentity, StoredRows, WeightSource
from kvwise.studies.pricing import native_pricer

_VECTORS: Final = TENSOR_TYPES["f32"]
_STD: Final = 0.02  # as models are initialized: activations neither vanish nor explode


def llama_spec(
    *,
    hidden: int,
    layers: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    intermediate: int,
    vocab: int,
    positions: int,
) -> ModelSpec:
    """A llama of any size, its head tied to its embedding."""
    attention = AttentionSpec(q_heads, kv_heads, head_dim, head_dim**-0.5, RopeSpec(1e4, head_dim))
    layer = LayerSpec(attention, MlpSpec(intermediate, Activation.SILU))
    return ModelSpec("llama", hidden, vocab, positions, (layer,) * layers, NormSpec(1e-5), tied_embeddings=True)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A weight in memory: raw bytes [rows, row_bytes]."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    raw: NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        return int(self.raw.nbytes)


def tensor(name: str, values: NDArray[np.float32], kind: TensorType) -> Tensor:
    """`values` [out, in] or [n], rounded to `kind`."""
    return Tensor(name, values.shape, kind, quantize(values.reshape(-1, values.shape[-1]), kind))


class RandomWeights:
    """Matrices of small random numbers in `kind`, vectors of ones; the same for the same seed."""

    def __init__(self, program: Program, kind: str, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.tensors: Mapping[str, Tensor] = {
            w.name: tensor(w.name, np.ones(w.shape, np.float32), _VECTORS)
            if w.role is Role.VECTOR
            else tensor(w.name, _STD * rng.standard_normal(w.shape, np.float32), TENSOR_TYPES[kind])
            for w in program.weights.values()
        }

        self._file = UnnamedFile()

    def read(self, name: str) -> NDArray[np.uint8]:
        return self.tensors[name].raw

    def locate(self, name: str) -> StoredRows:
        return self._file.append(self.tensors[name].type, self.tensors[name].raw)

    def identity(self) -> SourceIdentity | None:
        return None


@dataclass(frozen=True, slots=True)
class Served:
    """An engine over a model in memory."""

    engine: Engine
    loaded: LoadedProgram
    types: Mapping[str, TensorType]
    kv: KVCacheSpec
    threads: int

    @property
    def num_parameters(self) -> int:
        return self.loaded.program.num_parameters

    def pricer(self) -> Pricer:
        """Raises NotMeasured where this machine can't be probed."""
        return native_pricer(self.loaded.program, self.types, self.kv, self.threads)


@contextmanager
def serve(
    spec: ModelSpec,
    source: WeightSource,
    threads: int,
    *,
    pool_tokens: int,
    step_tokens: int = 512,
    logits_rows: int = 1,
    kv_type: str = "f16",
) -> Iterator[Served]:
    """`spec` with the weights of `source`, one request at a time with all of the pool to itself."""
    kv = KVCacheSpec.of(spec, kv_type)
    types = {name: stored.type for name, stored in source.tensors.items()}
    program = NATIVE.lower(build_program(spec), types)
    limits = StepLimits(step_tokens, logits_rows, 1, pool_tokens)
    loaded = NATIVE.load(program, source, kv, LoadOptions(kv.blocks_for(pool_tokens), limits, threads))
    try:
        engine = Engine(ProgramExecutor(loaded), kv, kv.blocks_for(pool_tokens), limits, vocab=spec.vocab)
        yield Served(engine, loaded, types, kv, threads)
    finally:
        loaded.close()
