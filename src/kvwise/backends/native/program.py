"""A program handed over to the extension: weights brought in, buffers allocated, then one call per step.

Knows no kernel and no layout.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from kvwise.backends.native.loading import WeightLoading
from kvwise.backends.protocol import Buffer, LoadOptions, MemoryNeeds
from kvwise.errors import BackendError
from kvwise.frozen import dataclass
from kvwise.program import ir
from kvwise.program.arena import plan_arena
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.model import RopeSpec
from kvwise.spec.weights import WeightSource

if TYPE_CHECKING:  # numpy takes as long to import as a small model to load: the workers are at it meanwhile
    import numpy as np
    from numpy.typing import NDArray

    from kvwise.spec.batch import StepBatch

_ROPE_CHUNK: Final = 4096  # positions whose angles are held in float64 at a time


@dataclass(frozen=True, slots=True)
class AttentionScratch:
    """What attention works in besides its slots: once for all threads, and once per thread."""

    shared_bytes: int
    thread_bytes: int

    def total_bytes(self, threads: int) -> int:
        return self.shared_bytes + threads * self.thread_bytes


class NativeProgram:
    """Implements backends.protocol.LoadedProgram. Everything is allocated here; `run` allocates nothing large."""

    def __init__(
        self,
        module: ModuleType,
        isa: str,
        program: ir.Program,
        source: WeightSource,
        kv: KVCacheSpec,
        options: LoadOptions,
        needs: MemoryNeeds,
        scratch: AttentionScratch,
    ) -> None:
        self.program, self.isa = program, isa
        self._error = module.NativeError
        limits, arena = options.limits, plan_arena(program, options.limits)
        self._model: Any = module.Model(
            isa=isa,
            threads=options.threads,
            kv_type=kv.kv_type.name,
            limits=module.ModelLimits(
                max_tokens=limits.max_tokens,
                max_logits_rows=limits.max_logits_rows,
                max_requests=limits.max_requests,
                max_context=limits.max_context,
                num_blocks=options.num_blocks,
            ),
            nbytes=module.ModelBytes(
                weights=needs.weights_bytes,
                kv_pool=needs.kv_pool_bytes,
                arena=needs.arena_bytes,
                shared=scratch.shared_bytes,
                scratch=scratch.thread_bytes,
                logits=needs.logits_bytes,
                tables=needs.tables_bytes,
            ),
        )
        for layer in kv.layers:
            self._model.add_kv_layer(layer.num_kv_heads, layer.k_dim)
        loading = WeightLoading(self._model, program, source, options, needs.weights_bytes)
        weights = loading.declare()
        loading.start()
        try:
            for rope in program.ropes:
                _fill_rope_table(self._model.rope_table(self._model.add_rope(rope.rotary_dim // 2)), rope)
            _Handover(self._model, program, arena.offsets, weights).hand_over()
            if options.meanwhile is not None:
                options.meanwhile()
            loading.finish()
        except BaseException:
            loading.cancel()
            raise

    def run(self, batch: StepBatch) -> NDArray[np.float32]:
        try:
            logits: NDArray[np.float32] = self._model.run(
                batch.token_ids,
                batch.positions,
                batch.slot_mapping,
                batch.query_starts,
                batch.context_lens,
                batch.block_tables,
                batch.logits_rows,
                batch.block_copies,
            )
        except self._error as error:
            raise BackendError(f"the step can't be run: {error}") from None
        return logits

    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(Buffer(row, *place) for row, place in self._model.buffers().items())

    def close(self) -> None:
        self._model = None


def _fill_rope_table(table: NDArray[np.float32], rope: RopeSpec) -> None:
    """`table` [2, max_context, pairs]: cos and sin of position · frequency, computed in float64, rounded once."""
    import numpy as np

    inv_freqs = np.array(rope.inv_freqs(), np.float64)
    for start in range(0, table.shape[1], _ROPE_CHUNK):
        rows = slice(start, min(start + _ROPE_CHUNK, table.shape[1]))
        angles = np.arange(rows.start, rows.stop, dtype=np.float64)[:, None] * inv_freqs
        table[0, rows] = np.cos(angles) * rope.scaling.attention_factor
        table[1, rows] = np.sin(angles) * rope.scaling.attention_factor


class _Handover:
    """Declares every slot, then every op in order, by the handles that the extension gave out."""

    def __init__(self, model: Any, program: ir.Program, offsets: Any, weights: dict[str, int]) -> None:
        self._model, self._program, self._weights = model, program, weights
        self._slots = {
            slot.name: model.add_slot(
                in_logits=slot.name == program.output,
                offset=offsets.get(slot.name, 0),
                row_bytes=slot.row_bytes,
                width=slot.width,
                logits_rows=slot.rows is ir.Rows.LOGITS,
            )
            for slot in program.slots.values()
        }

    def hand_over(self) -> None:
        for op in self._program.ops:
            _HANDOVERS[type(op)](self, op)
        self._model.finish(self._slots[self._program.output])

    def embed(self, op: ir.Embed) -> None:
        self._model.embed(self._slots[op.out], self._weights[op.table], op.scale)

    def rms_norm(self, op: ir.RmsNorm) -> None:
        self._model.rms_norm(
            self._slots[op.out], self._slots[op.x], self._weights[op.weight], op.eps, op.weight_offset, op.group
        )

    def quantize(self, op: ir.Quantize) -> None:
        self._model.quantize(self._slots[op.out], self._slots[op.x], op.group, op.twice)

    def narrow(self, op: ir.Narrow) -> None:
        self._model.narrow(self._slots[op.out], self._slots[op.x])

    def matmul(self, op: ir.MatMul) -> None:
        bias = -1 if op.bias is None else self._weights[op.bias]
        self._model.matmul(self._slots[op.out], self._slots[op.x], self._weights[op.weight], bias)

    def rope(self, op: ir.Rope) -> None:
        self._model.rope(self._slots[op.out], self._slots[op.x], op.rope, op.head_dim)

    def attention(self, op: ir.Attention) -> None:
        self._model.attention(
            self._slots[op.out],
            self._slots[op.q],
            self._slots[op.k],
            self._slots[op.v],
            op.layer,
            op.num_q_heads,
            op.head_dim,
            op.scale,
            op.softcap or 0.0,
            op.window or 0,
        )

    def add(self, op: ir.Add) -> None:
        self._model.add(self._slots[op.out], self._slots[op.x], self._slots[op.y])

    def glu(self, op: ir.Glu) -> None:
        self._model.glu(self._slots[op.out], self._slots[op.gate], self._slots[op.up], op.activation.value)

    def gather_rows(self, op: ir.GatherRows) -> None:
        self._model.gather_rows(self._slots[op.out], self._slots[op.x])

    def softcap(self, op: ir.Softcap) -> None:
        self._model.softcap(self._slots[op.out], self._slots[op.x], op.cap)


_HANDOVERS: Final[dict[type[ir.Op], Callable[[_Handover, Any], None]]] = {
    ir.Embed: _Handover.embed,
    ir.RmsNorm: _Handover.rms_norm,
    ir.Quantize: _Handover.quantize,
    ir.Narrow: _Handover.narrow,
    ir.MatMul: _Handover.matmul,
    ir.Rope: _Handover.rope,
    ir.Attention: _Handover.attention,
    ir.Add: _Handover.add,
    ir.Glu: _Handover.glu,
    ir.GatherRows: _Handover.gather_rows,
    ir.Softcap: _Handover.softcap,
}
