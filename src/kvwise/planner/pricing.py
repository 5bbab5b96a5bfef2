"""Pricers for a model on a placement: its program cut for the devices, with the bytes that each of them holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvwise.backends.price.efficiency import EXPECTED, IDEAL, Efficiency
from kvwise.backends.price.engines import ROOFLINE, EngineTiming
from kvwise.backends.price.roofline import RooflinePricer, Stage
from kvwise.hardware.devices import Placement
from kvwise.planner.placed import place_program
from kvwise.program.ir import Program
from kvwise.spec.dtypes import TensorType
from kvwise.spec.kv import KVCacheSpec


def roofline_pricer(
    program: Program,
    types: Mapping[str, TensorType],
    weight_bytes: Mapping[str, int],
    kv: KVCacheSpec,
    placement: Placement,
    engine: EngineTiming,
    *,
    placed: Sequence[Program] = (),
    efficiency: Efficiency | None = None,
    compute: str | None = None,
) -> RooflinePricer:
    """Prices steps of `program` on `placement` under `engine`. Pure.

    types, weight_bytes: of the whole program's weights, as stored. placed: the programs of the placement's stages,
    where they are known. efficiency: default: what is expected of an engine,
    the peaks themselves without one. compute: the type of all products, where it is not the one that goes with the
    weights' types. Raises UsageError where the program can't be cut so.
    """
    parts = []
    for stage in placed or place_program(program, placement):
        held = {
            name: -(-weight_bytes[name] * weight.num_elements // program.weights[name].num_elements)
            for name, weight in stage.weights.items()
        }
        cache = KVCacheSpec(stage.kv_layers, kv.kv_type, kv.block_tokens, stage.states)
        parts.append(Stage(stage, cache, held, types))
    return RooflinePricer(tuple(parts), placement, engine, efficiency or default_efficiency(engine), compute)


def default_efficiency(engine: EngineTiming) -> Efficiency:
    return IDEAL if engine is ROOFLINE else EXPECTED
