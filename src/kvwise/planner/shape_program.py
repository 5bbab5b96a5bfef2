"""A program for a shape alone: its parameters in a few square products, and attention that keeps what it keeps.

It stands for a model of which only sizes are known, so that the same pricers read it. On several devices each has its
part of the parameters and of K and V, and two sums are exchanged per layer. It can't be run, and how many kernels
a real model starts is not known: what an engine costs beside them is priced too low.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kvwise.backends.price.engines import EngineTiming
from kvwise.backends.price.roofline import RooflinePricer, Stage
from kvwise.errors import UsageError
from kvwise.hardware.devices import Placement
from kvwise.planner.pricing import default_efficiency
from kvwise.program.collective import AllReduce
from kvwise.program.ir import Attention, Embed, GatherRows, MatMul, Op, Program, Role, Rows, Slot, Weight
from kvwise.spec.dtypes import TensorType
from kvwise.spec.kv import KVCacheSpec, LayerKV

PRODUCTS: Final = 4  # few, so that what passes between them is little beside the weights; not one, to be read in parts


def shape_pricer(
    parameters: int,
    weight_bytes: int,
    weights: TensorType,
    kv: KVCacheSpec,
    q_heads: int | None,
    placement: Placement,
    engine: EngineTiming,
    *,
    compute: str | None = None,
) -> RooflinePricer:
    """Prices steps of a shape on `placement`. Raises UsageError for stages of a pipeline: a shape has none."""
    if placement.pipeline_parallel > 1:
        raise UsageError("a shape has no layers to cut into stages", expected="tensor parallelism")
    ranks = placement.tensor_parallel
    its_kv = replace(kv, layers=tuple(_share(layer, ranks) for layer in kv.layers))
    program = shape_program(parameters // ranks, its_kv.layers, q_heads, ranks)
    matrices = [name for name, weight in program.weights.items() if weight.role is Role.MATRIX]
    held = dict.fromkeys(program.weights, 0)
    held.update(dict.fromkeys(matrices, weight_bytes // ranks // len(matrices)))
    stage = Stage(program, its_kv, held, dict.fromkeys(program.weights, weights))
    return RooflinePricer((stage,), placement, engine, default_efficiency(engine), compute)


def _share(layer: LayerKV, ranks: int) -> LayerKV:
    """A rank's part of the heads, or of one head's width where the shape says no more; at least one element."""
    if layer.num_kv_heads > 1:
        return replace(layer, num_kv_heads=max(1, layer.num_kv_heads // ranks))
    return replace(layer, k_dim=-(-layer.k_dim // ranks), v_dim=-(-layer.v_dim // ranks))


def shape_program(parameters: int, kv_layers: Sequence[LayerKV], q_heads: int | None, ranks: int = 1) -> Program:
    """`parameters` of a rank in PRODUCTS square products, and attention as wide as the query heads. Pure.

    q_heads: of the whole model; None: as many as KV heads.
    """
    width = max(1, math.isqrt(parameters // PRODUCTS))
    rows = max(1, round(parameters / PRODUCTS / width))
    heads = [kept.num_kv_heads if q_heads is None else max(1, q_heads // ranks) for kept in kv_layers]
    q_width = max((n * kept.k_dim for n, kept in zip(heads, kv_layers, strict=True)), default=1)
    embed = Weight("embed.weight", (1, width), Role.EMBEDDING)
    products = [Weight(f"layers.{i}.weight", (rows, width), Role.MATRIX) for i in range(PRODUCTS)]
    slots: dict[str, Slot] = {}
    ops: list[Op] = []

    def emit(op: Op, slot_width: int, rows: Rows = Rows.TOKENS) -> str:
        slots[op.out] = Slot(op.out, rows, slot_width)
        ops.append(op)
        return op.out

    q = emit(Embed(out="q", table=embed.name), q_width)
    for i, (kept, num_q_heads) in enumerate(zip(kv_layers, heads, strict=True)):
        q = emit(
            Attention(
                out=f"layers.{i}.heads", q=q, k=q, v=q, layer=i, num_q_heads=num_q_heads,
                num_kv_heads=kept.num_kv_heads, head_dim=kept.k_dim, scale=1.0, softcap=None, window=kept.window,
            ),
            q_width,
        )  # fmt: skip
        for half in ("attn", "mlp") if ranks > 1 else ():
            whole_width = min(q_width * ranks, width)  # the hidden width, as near as a shape tells
            q = emit(AllReduce(out=f"layers.{i}.{half}.sum", x=q, ranks=ranks), whole_width)
    x = emit(Embed(out="x", table=embed.name), width)
    for weight in products:
        x = emit(MatMul(out=weight.name.removesuffix("weight") + "product", x=x, weight=weight.name), rows)
    output = emit(GatherRows(out="out", x=x), rows, Rows.LOGITS)
    weights = {weight.name: weight for weight in (embed, *products)}
    return Program(tuple(ops), slots, weights, (), tuple(kv_layers), output)
