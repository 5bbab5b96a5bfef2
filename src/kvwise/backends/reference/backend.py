"""Loads a program into numpy arrays and computes it op by op, in float32 or in float64 (the truth)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvwise.backends.protocol import Buffer, LoadOptions, MemoryNeeds
from kvwise.backends.reference.batch_check import check_batch
from kvwise.backends.reference.ops import Step, compute
from kvwise.backends.reference.store import KVStore
from kvwise.program.arena import plan_arena
from kvwise.program.ir import Program, SlotType
from kvwise.spec.batch import StepBatch
from kvwise.spec.dtypes import TensorType
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.weights import WeightSource


class ReferenceBackend:
    """Weights are held dequantized in `dtype`; activations are that type too. A quantized activation in the program
    is rounded as the native backend rounds it, so the same lowered program can be run by both."""

    def __init__(self, name: str, dtype: type[np.floating[Any]]) -> None:
        self.name = name
        self.kv_types = ("f32", "f16", "bf16", "int8", "int4")
        self._dtype = np.dtype(dtype)

    def lower(self, program: Program, types: Mapping[str, TensorType]) -> Program:
        return program

    def weight_bytes(self, program: Program, types: Mapping[str, TensorType]) -> dict[str, int]:
        return {w.name: w.num_elements * self._dtype.itemsize for w in program.weights.values()}

    def memory_needs(
        self, program: Program, types: Mapping[str, TensorType], kv: KVCacheSpec, options: LoadOptions
    ) -> MemoryNeeds:
        scale = self._dtype.itemsize // 4
        arena = plan_arena(program, options.limits)
        return MemoryNeeds(
            weights_bytes=sum(self.weight_bytes(program, types).values()),
            kv_pool_bytes=options.num_blocks * kv.bytes_per_block,
            arena_bytes=arena.total_bytes * scale,
            logits_bytes=arena.logits_bytes,
            tables_bytes=0,
        )

    def kept_file(self, program: Program, source: WeightSource, kv: KVCacheSpec, options: LoadOptions) -> None:
        return None

    def load(self, program: Program, source: WeightSource, kv: KVCacheSpec, options: LoadOptions) -> ReferenceProgram:
        return ReferenceProgram(program, source, kv, options, self._dtype)


class ReferenceProgram:
    def __init__(
        self,
        program: Program,
        source: WeightSource,
        kv: KVCacheSpec,
        options: LoadOptions,
        dtype: np.dtype[Any],
    ) -> None:
        self.program = program
        self._kv, self._options, self._dtype = kv, options, dtype
        if options.meanwhile is not None:
            options.meanwhile()
        self._weights = _read_weights(program, source, options, dtype)
        self._store = KVStore(kv, options.num_blocks)
        arena = plan_arena(program, options.limits)
        self._offsets = arena.offsets
        self._arena = np.zeros(arena.total_bytes // 4, dtype)
        self._logits = np.zeros((options.limits.max_logits_rows, program.slots[program.output].width), np.float32)

    def run(self, batch: StepBatch) -> NDArray[np.float32]:
        check_batch(
            batch,
            self._options.limits,
            vocab=self._logits.shape[1],
            num_blocks=self._options.num_blocks,
            block_tokens=self._kv.block_tokens,
        )
        self._store.copy_blocks(batch.block_copies)
        slots: dict[str, NDArray[Any]] = {}
        step = Step(batch, slots, self._weights, self.program.ropes, self._store)
        for op in self.program.ops:
            value = compute(op, step)
            slots[op.out] = self._place(op.out, value)
        logits = self._logits[: batch.num_logits_rows]
        logits[:] = slots[self.program.output]
        return logits

    def _place(self, slot: str, value: NDArray[Any]) -> NDArray[Any]:
        """Put `value` where the arena plan says. The output, and q8 slots held here as numbers, stay outside."""
        if slot not in self._offsets or self.program.slots[slot].type is not SlotType.F32:
            return value
        start = self._offsets[slot] // 4
        view = self._arena[start : start + value.size].reshape(value.shape)
        view[:] = value
        return view

    def buffers(self) -> tuple[Buffer, ...]:
        named = [("weights", w) for w in self._weights.values()]
        named += [("kv_pool", layer) for layer in self._store.layers]
        named += [("arena", self._arena), ("logits", self._logits)]
        return tuple(Buffer(row, array.ctypes.data, array.nbytes) for row, array in named)

    def close(self) -> None:
        self._weights, self._arena, self._logits = {}, np.zeros(0, self._dtype), np.zeros((0, 0), np.float32)
        self._store.layers = ()


def _read_weights(
    program: Program, source: WeightSource, options: LoadOptions, dtype: np.dtype[Any]
) -> dict[str, NDArray[Any]]:
    from kvwise.checkpoint.quants import dequantize

    total = sum(source.tensors[name].nbytes for name in program.weights)
    done = 0
    weights: dict[str, NDArray[Any]] = {}
    for name, weight in program.weights.items():
        if options.progress is not None:
            options.progress(done, total)
        stored = source.tensors[name]
        values = dequantize(source.read(name), stored.type, dtype)
        weights[name] = values.reshape(weight.shape)
        done += stored.nbytes
    if options.progress is not None:
        options.progress(total, total)
    return weights


REFERENCE: Final = ReferenceBackend("reference", np.float32)
TRUTH: Final = ReferenceBackend("reference-f64", np.float64)
