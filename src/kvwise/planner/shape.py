"""The memory of a shape alone: parameters, and K and V by layers and heads or by bytes per token. Has no program."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvwise.backends.price.engines import DEFAULT_ENGINE, ENGINES
from kvwise.errors import UsageError
from kvwise.hardware.devices import Placement, parse_placement
from kvwise.ledger.host import HostMemory, MemoryLimit, read_host_memory
from kvwise.planner.latency import Latency, placed_latency
from kvwise.planner.plan import Alternative, Plan
from kvwise.planner.shape_program import shape_pricer
from kvwise.planner.sizes import weight_type
from kvwise.planner.steady_state import Workload
from kvwise.planner.tables import alternative, check_memory_limit, check_range, check_tokens, kv_table, split_context
from kvwise.spec.dtypes import TensorType
from kvwise.spec.kv import KV_TYPES, KVCacheSpec, KVType, LayerKV
from kvwise.spec.model import MAX_LAYERS, MAX_WIDTH

DEFAULT_CONTEXT: Final = 4096  # as the engine's, where the model allows it
MAX_PARAMS: Final = 1e18
_MAX_KV_BYTES: Final = 2**32  # per token; the largest known, OPT-175B, keeps 4.5 MiB
_BYTES: Final = KVType("bytes", TensorType("bytes", 1, 1, None))


def plan_shape(
    *,
    params: float,
    layers: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    q_heads: int | None = None,
    kv_bytes_per_token: int | None = None,
    context: int | None = None,
    batch: int = 1,
    kv_dtype: str = "f16",
    weights: str = "bf16",
    memory_limit: int | None = None,
    host: HostMemory | None = None,
    on: str | Placement | None = None,
    engine: str = DEFAULT_ENGINE,
    output_tokens: int | None = None,
) -> Plan:
    """The memory of a shape alone: weights are params x bits; K and V are layers x KV heads x head_dim.

    kv_bytes_per_token says what K and V take instead, where a source says no more. Without `q_heads` there is no
    telling what MHA would cost. on, engine, output_tokens: as plan(); the last tokens of the context are put out.
    Raises UsageError.
    """
    if not 1 <= params <= MAX_PARAMS:  # false for NaN
        raise UsageError(f"params is {params}", expected=f"1 to {MAX_PARAMS:g}")
    context = check_tokens("context", DEFAULT_CONTEXT if context is None else context)
    batch = check_tokens("batch", batch)
    memory_limit = check_memory_limit(memory_limit)
    if kv_bytes_per_token is not None:
        if any(value is not None for value in (layers, kv_heads, head_dim, q_heads)):
            raise UsageError("kv_bytes_per_token beside layers or heads", expected="one of the two")
        check_range("kv_bytes_per_token", kv_bytes_per_token, _MAX_KV_BYTES)
        kv = KVCacheSpec((LayerKV(1, kv_bytes_per_token, 0, None),), _BYTES)
        name = f"{kv_bytes_per_token} KV bytes per token"
        alternatives: tuple[Alternative, ...] = ()
    else:
        kv = _kv(layers, kv_heads, head_dim, kv_heads if q_heads is None else q_heads, kv_dtype)
        name = f"{layers} layers x {kv_heads} KV heads x {head_dim}"
        alternatives = _alternatives(kv, q_heads, context, batch)
    stored_as = weight_type(weights)
    parameters = round(params)
    blocks = -(-parameters // stored_as.block_elements)
    weight_bytes = blocks * stored_as.block_bytes
    host = host or read_host_memory()
    latency = None
    if on is not None:
        placement = parse_placement(on) if isinstance(on, str) else on
        host = _pooled(placement) or host
        work = Workload(*split_context(context, output_tokens), batch)
        latency = _latency(parameters, weight_bytes, stored_as, kv, q_heads, placement, engine, work)
    return Plan(
        model=name,
        source="shape",
        family=None,
        parameters=parameters,
        weight_bytes=weight_bytes,
        weight_type=stored_as.name,
        kv=kv,
        context=context,
        batch=batch,
        kv_table=kv_table(kv, context, batch),
        alternatives=alternatives,
        host=host,
        memory_limit=memory_limit,
        memory=None,
        spec=None,
        notes=("a shape has no program: activations and logits are not in the total",),
        latency=latency,
    )


def _pooled(placement: Placement) -> HostMemory | None:
    """The memory of all devices together: a shape does not say how it is cut. None where it is not known."""
    usable = placement.device.memory_usable_bytes
    if usable is None or placement.is_this_machine:
        return None
    together = usable * placement.num_devices
    return HostMemory(together, (MemoryLimit(str(placement), together),))


def _latency(
    parameters: int,
    weight_bytes: int,
    weights: TensorType,
    kv: KVCacheSpec,
    q_heads: int | None,
    placement: Placement,
    engine: str,
    work: Workload,
) -> Latency:
    pricer = shape_pricer(parameters, weight_bytes, weights, kv, q_heads, placement, ENGINES[engine])
    return placed_latency(pricer, work, has_experts=False)


def _kv(
    layers: int | None, kv_heads: int | None, head_dim: int | None, q_heads: int | None, kv_dtype: str
) -> KVCacheSpec:
    if layers is None or kv_heads is None or head_dim is None or q_heads is None:
        raise UsageError("a shape without its K and V", expected="layers, kv_heads and head_dim, or kv_bytes_per_token")
    check_range("layers", layers, MAX_LAYERS)
    for name, value in (("kv_heads", kv_heads), ("head_dim", head_dim), ("q_heads", q_heads)):
        check_range(name, value, MAX_WIDTH)
    if q_heads % kv_heads:
        raise UsageError(f"{q_heads} query heads can't share {kv_heads} KV heads evenly")
    return KVCacheSpec((LayerKV(kv_heads, head_dim, head_dim, None),) * layers, KV_TYPES[kv_dtype])


def _alternatives(kv: KVCacheSpec, q_heads: int | None, context: int, batch: int) -> tuple[Alternative, ...]:
    out = []
    for name, heads in (("mha", q_heads), ("mqa", 1)):
        if heads:
            layers = tuple(replace(layer, num_kv_heads=heads) for layer in kv.layers)
            out.append(alternative(name, replace(kv, layers=layers), None, context, batch))
    return tuple(out)
