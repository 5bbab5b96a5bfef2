"""The table that shows inference happen: one row per step of one request, beside what it would be without a cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvwise.engine.report import StepReport
from kvwise.program.cost import WeightBytes, cost_of
from kvwise.program.ir import Program
from kvwise.spec.kv import KVCacheSpec
from kvwise.spec.shape import StepShape


@dataclass(frozen=True, slots=True)
class TraceRow:
    """Positions [first_position, last_position] were computed in this step, which chose `token_id`.

    `token_id` is None while the prompt is not finished. cached_tokens: in the cache after the step. Bytes are what the
    program says is read, weights and KV. The uncached_x figures are of the same step if nothing had been kept: all
    positions computed again.
    """

    step: int
    kind: str
    first_position: int
    last_position: int
    token_id: int | None
    cached_tokens: int
    measured_s: float
    read_bytes: int
    flops: int
    uncached_positions: int
    uncached_read_bytes: int
    uncached_flops: int


def trace_rows(
    reports: Iterable[StepReport], program: Program, kv: KVCacheSpec, weight_bytes: WeightBytes
) -> Iterator[TraceRow]:
    """Rows of a run of a single request, as its steps come in. Decodes are numbered from 1."""
    decodes = 0
    for report in reports:
        (part,) = report.parts
        decodes += not part.is_prefill
        end = part.first_position + part.num_tokens
        done = cost_of(program, report.shape, kv, weight_bytes).total
        anew = cost_of(program, StepShape((end,), (end,), report.shape.num_logits_rows), kv, weight_bytes).total
        yield TraceRow(
            step=report.index,
            kind="prefill" if part.is_prefill else f"decode {decodes}",
            first_position=part.first_position,
            last_position=end - 1,
            token_id=part.token_id,
            cached_tokens=part.cached_tokens,
            measured_s=report.measured_s,
            read_bytes=done.weight_bytes + done.kv_read_bytes,
            flops=done.flops,
            uncached_positions=end,
            uncached_read_bytes=anew.weight_bytes + anew.kv_read_bytes,
            uncached_flops=anew.flops,
        )
