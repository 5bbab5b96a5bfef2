"""The native backend as the engine sees it: lowering, exact sizes, loading. Owns no memory: program.py does.

KVWISE_ISA (scalar, avx2, avx512, neon) chooses the kernels; the best that this machine runs without it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Final

from kvwise.backends.native import layout
from kvwise.backends.native.program import AttentionScratch, NativeProgram
from kvwise.backends.protocol import KeptFile, LoadOptions, MemoryNeeds
from kvwise.errors import BackendError, UsageError
from kvwise.program.arena import plan_arena
from kvwise.program.ir import Q8_BLOCK, Attention, MatMul, Program, RmsNorm, Rope, SlotType
from kvwise.program.rewrite import Rounding, round_activations
from kvwise.spec.dtypes import TensorType
from kvwise.spec.kv import BLOCK_TOKENS, KVCacheSpec
from kvwise.spec.weights import WeightSource
from kvwise.units import align_up

ISA_VARIABLE: Final = "KVWISE_ISA"


def native_module() -> ModuleType:
    """The extension. Raises BackendError where it is not built."""
    try:
        return importlib.import_module("kvwise.backends.native._native")
    except ImportError as error:
        raise BackendError(
            f"the native kernels can't be loaded: {error}",
            action="build them with `make build`, or choose the reference backend",
        ) from None


def chosen_isa() -> str:
    """The instruction set to compute with. Raises UsageError when KVWISE_ISA names one this machine can't run."""
    usable: list[str] = native_module().isas()
    wanted = os.environ.get(ISA_VARIABLE, "").strip().lower()
    if not wanted:
        return usable[0]
    if wanted not in usable:
        raise UsageError(f"{ISA_VARIABLE}={wanted} can't run on this machine", expected=f"one of {', '.join(usable)}")
    return wanted


class NativeBackend:
    name = "native"
    kv_types = ("f32", "f16", "bf16", "int8", "int4")

    def lower(self, program: Program, types: Mapping[str, TensorType]) -> Program:
        """Activations become q8 for the types with integer kernels, bf16 for bf16 where the machine multiplies those
        faster; but on their way to K and V they become q8x2 and stay float32.

        Those two are read by every later token. On SmolLM2, rounding their inputs to q8 gives a third of the variance
        of the logits' error (rms 0.232 with it, 0.190 without), for 6 % of the multiplications. q8x2 is within 2⁻¹⁵
        of each group's largest element, and costs twice q8.
        """
        kept = {slot for op in program.ops if isinstance(op, Attention) for slot in (op.k, op.v)}
        exact: set[str] = set()
        for op in reversed(program.ops):  # back through norms and rotations to the projections
            if op.out in kept and isinstance(op, MatMul):
                exact.add(op.weight)
            elif op.out in kept and isinstance(op, RmsNorm | Rope):
                kept.add(op.x)

        pairs = native_module().pairs_are_fast(chosen_isa())

        def wanted(weight: str) -> Rounding | None:
            name = types[weight].name
            if name == "bf16" and pairs and weight not in exact and program.weights[weight].shape[-1] > 1:
                return Rounding(SlotType.BF16)
            if name not in layout.Q8_WEIGHTS:
                return None
            group = layout.OWN_GROUP if name in layout.OWN_TYPES else Q8_BLOCK
            return Rounding(SlotType.Q8X2 if weight in exact else SlotType.Q8, group)

        return round_activations(program, wanted)

    def weight_bytes(self, program: Program, types: Mapping[str, TensorType]) -> dict[str, int]:
        return {w.name: layout.weight_bytes(w, types[w.name]) for w in program.weights.values()}

    def memory_needs(
        self, program: Program, types: Mapping[str, TensorType], kv: KVCacheSpec, options: LoadOptions
    ) -> MemoryNeeds:
        arena = plan_arena(program, options.limits)
        return MemoryNeeds(
            weights_bytes=sum(self.weight_bytes(program, types).values()),
            kv_pool_bytes=options.num_blocks * kv.bytes_per_block,
            arena_bytes=arena.total_bytes + attention_scratch(program, options).total_bytes(options.threads),
            logits_bytes=arena.logits_bytes,
            tables_bytes=layout.tables_bytes(program, options.limits.max_context),
        )

    def kept_file(
        self, program: Program, source: WeightSource, kv: KVCacheSpec, options: LoadOptions
    ) -> KeptFile | None:
        if options.weight_cache is None:
            return None
        from kvwise.backends.native.weight_cache import cache_file

        types = {name: source.tensors[name].type for name in program.weights}
        file = cache_file(options.weight_cache, program, source, sum(self.weight_bytes(program, types).values()))
        return None if file is None else KeptFile(file.path, file.nbytes)

    def load(self, program: Program, source: WeightSource, kv: KVCacheSpec, options: LoadOptions) -> NativeProgram:
        """Raises BackendError for a KV layout there are no kernels for, and when memory is refused."""
        if kv.block_tokens != BLOCK_TOKENS or kv.kv_type.name not in self.kv_types:
            raise BackendError(
                f"no native attention for KV blocks of {kv.block_tokens} tokens in {kv.kv_type.name}",
                expected=f"{BLOCK_TOKENS} tokens in one of {', '.join(self.kv_types)}",
            )
        types = {name: source.tensors[name].type for name in program.weights}
        needs = self.memory_needs(program, types, kv, options)
        module = native_module()
        try:
            return NativeProgram(
                module, chosen_isa(), program, source, kv, options, needs, attention_scratch(program, options)
            )
        except (module.RefusedError, MemoryError) as error:
            raise BackendError(f"loading failed: {error}", action="free memory, or plan for less of it") from None
        except module.NativeError as error:
            raise BackendError(f"loading failed: {error}") from None


def attention_scratch(program: Program, options: LoadOptions) -> AttentionScratch:
    """The most that any layer needs. Raises BackendError for heads that attention has no buffers for."""
    module, isa = native_module(), chosen_isa()
    widest = max((op.head_dim for op in program.ops if isinstance(op, Attention)), default=0)
    if widest > module.MAX_HEAD_DIM:
        raise BackendError(
            f"no native attention for a head_dim of {widest}",
            expected=f"at most {module.MAX_HEAD_DIM}",
            action="use the reference backend",
        )
    sizes = [
        module.attention_bytes(
            isa, op.num_q_heads, program.kv_layers[op.layer].num_kv_heads, op.head_dim, options.limits.max_context
        )
        for op in program.ops
        if isinstance(op, Attention)
    ]
    thread_bytes = align_up(max((thread for thread, _ in sizes), default=0), layout.LINE)
    shared_bytes = align_up(max((shared for _, shared in sizes), default=0), layout.LINE)
    return AttentionScratch(shared_bytes, thread_bytes)


NATIVE: Final = NativeBackend()
