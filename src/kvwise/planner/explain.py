"""Every figure of a plan as its formula, the numbers put in, and what comes out. Computes nothing anew.

Sizes come from the specs and the plan's own rows, seconds from the pricer that the plan was made with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from kvwise.backends.price.step import PartPrice, StepPrice, StepPricer
from kvwise.errors import NotMeasured
from kvwise.planner.latency import Latency
from kvwise.planner.placed import Stage
from kvwise.planner.plan import Plan
from kvwise.planner.policy import Policy
from kvwise.spec.kv import KVCacheSpec, LayerKV
from kvwise.spec.shape import StepShape
from kvwise.units import format_bytes, format_count, format_seconds


@dataclass(frozen=True, slots=True)
class Formula:
    """One figure: `formula` in words, `numbers` put in, `value` as people read it."""

    name: str
    formula: str
    numbers: str
    value: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def explain(plan: Plan) -> tuple[Formula, ...]:
    """All of a plan's figures, in the order in which they build on one another. Pure."""
    return (*_weights(plan), *_kv(plan), *_memory(plan), *_latency(plan))


def _weights(plan: Plan) -> Iterator[Formula]:
    bits = 8 * plan.weight_bytes / plan.parameters
    yield Formula(
        "weights",
        "sum over all tensors: elements x bytes of their type, scales included",
        f"{format_count(plan.parameters)} parameters x {bits:.4g} bits ({plan.weight_type})",
        format_bytes(plan.weight_bytes),
    )
    if plan.placed is None:
        return
    stage, ranks = plan.placed.fullest, plan.placed.placement.tensor_parallel
    left_out = ", tables that are only looked up stay on the host" if plan.placed.policy.embedding_on_host else ""
    yield Formula(
        "weights of the fullest device",
        f"its layers' tensors, cut by ranks where they can be, whole where not{left_out}",
        f"{stage.num_layers} layers, {ranks} ranks, {format_count(stage.program.num_parameters)} parameters",
        format_bytes(stage.row("weights")),
    )


def _kv(plan: Plan) -> Iterator[Formula]:
    kv = plan.kv
    scale_bytes = kv.kv_type.scale_bytes
    scales = f", and {scale_bytes} B of scale for K and for V of each head" if scale_bytes else ""
    yield Formula(
        "KV per token",
        "sum over layers: KV heads x (width of K + width of V) x bytes of an element",
        f"({_layers(kv)}) x {kv.kv_type.element.bits_per_element / 8:g} B of {kv.kv_type.name}{scales}",
        format_bytes(kv.bytes_per_token),
    )
    if kv.state_bytes_per_request:
        numbers = f"{len(kv.states)} layers with a state"
        value = format_bytes(kv.state_bytes_per_request)
        yield Formula("states of a request", "sum over layers: recurrent x 4 B + convolution x 2 B", numbers, value)
    if plan.placed is None:
        yield Formula(
            "KV", "batch x context x KV per token",
            f"{format_count(plan.batch)} x {format_count(plan.context)} x {format_count(kv.bytes_per_token)} B",
            format_bytes(plan.kv_bytes),
        )  # fmt: skip
        return
    stage = plan.placed.fullest
    yield Formula(
        "KV of a request on a device",
        f"sum over its layers and its share of heads: tokens held, in blocks of {stage.policy.block_tokens}, x bytes",
        _held(stage.kv, stage.policy, plan.context),
        format_bytes(stage.held_bytes),
    )
    yield Formula(
        "KV pool", "batch x KV of a request",
        f"{format_count(plan.batch)} x {format_bytes(stage.held_bytes - stage.kv.state_bytes_per_request)}",
        format_bytes(stage.row("kv_pool")),
    )  # fmt: skip


def _layers(kv: KVCacheSpec) -> str:
    """'32 layers x 8 x (128 + 128)', a term for each kind of layer."""
    kinds = Counter((layer.num_kv_heads, layer.k_dim, layer.v_dim) for layer in kv.layers)
    return " + ".join(f"{n} layers x {heads} x ({k} + {v})" for (heads, k, v), n in kinds.items())


def _held(kv: KVCacheSpec, policy: Policy, context: int) -> str:
    kinds: Counter[tuple[int, int]] = Counter()
    for number, layer in enumerate(kv.layers):
        kinds[policy.held_tokens(layer.bound, context), kv.layer_bytes_per_token(number)] += 1
    terms = [f"{n} layers x {format_count(held)} tokens x {nbytes} B" for (held, nbytes), n in kinds.items()]
    if kv.state_bytes_per_request:
        terms.append(f"states {format_bytes(kv.state_bytes_per_request)}")
    windowed = [layer for layer in kv.layers if layer.bound]
    note = f" ({_window(windowed[0], policy)})" if windowed else ""
    return " + ".join(terms) + note


def _window(layer: LayerKV, policy: Policy) -> str:
    return f"windows of {layer.bound} are {'evicted' if policy.evict_windows else 'kept whole'}"


def _memory(plan: Plan) -> Iterator[Formula]:
    for row in plan.rows:
        if row.name not in ("weights", "kv_pool"):
            yield Formula(row.label, _ROW_FORMULAS.get(row.name, ""), row.source, row.format_value(row.predicted))
    rows = " + ".join(row.format_value(row.predicted) for row in plan.rows)
    yield Formula("total", "sum of all rows", rows, format_bytes(plan.total_bytes))
    if plan.placed is None:
        yield Formula("reserve", "as large as the ledger lets a residual be", "", format_bytes(plan.reserve_bytes))
        yield Formula("budget", "what there is", plan.budget_source, format_bytes(plan.budget_bytes))
    else:
        yield from _budget(plan.placed.fullest, plan)
    sign = "<=" if plan.fits else ">"
    both = f"{format_bytes(plan.total_bytes)} + {format_bytes(plan.reserve_bytes)} {sign} "
    verdict = "fits" if plan.fits else "does not fit"
    yield Formula("verdict", "total + reserve <= budget", both + format_bytes(plan.budget_bytes), verdict)


_ROW_FORMULAS = {
    "arena": "most bytes alive at once, laid out by lifetimes, in the largest step",
    "logits": "rows x vocabulary x bytes",
    "states": "requests x what each holds once",
    "runtime": "the device's runtime, or this process before the model",
    "graphs": "recorded steps",
    "workspaces": "of libraries",
    "collectives": "buffers among devices",
    "tables": "rotary tables and staging",
}


def _budget(stage: Stage, plan: Plan) -> Iterator[Formula]:
    policy, placed = stage.policy, plan.placed
    assert placed is not None
    usable = placed.placement.device.memory_usable_bytes
    there = "the limit" if usable is None else format_bytes(usable)
    free = " of what runtime and collectives leave" if policy.fraction_of_free else ""
    numbers = [f"{policy.memory_fraction:g}{free} of {there}"]
    if plan.memory_limit is not None:
        numbers.append(f"at most {format_bytes(plan.memory_limit)}")
    if policy.beside:
        beside = ", ".join(policy.beside)
        numbers.append(f"{beside} beside it ({format_bytes(sum(stage.row(name) for name in policy.beside))})")
    if policy.pool_fraction < 1:
        numbers.append(f"K and V take {policy.pool_fraction:g} of what the other rows leave")
    yield Formula(f"budget ({policy.name})", "what the engine lets itself fill", "; ".join(numbers),
                  format_bytes(stage.budget_bytes))  # fmt: skip
    reserve = f"max({policy.reserve_fraction:g} x total, {format_bytes(policy.reserve_bytes)})"
    yield Formula("reserve", "kept free", reserve, format_bytes(stage.reserve_bytes))
    rest = stage.total_bytes - stage.batch * (stage.held_bytes + stage.logits_row_bytes)
    each = format_bytes(stage.held_bytes + stage.logits_row_bytes)
    yield Formula(
        "capacity", "(budget - reserve - all that no request brings) / what a request brings",
        f"({format_bytes(stage.budget_bytes)} - reserve - {format_bytes(rest)}) / {each}",
        f"{format_count(placed.max_requests)} requests of {format_count(plan.context)} tokens",
    )  # fmt: skip


def _latency(plan: Plan) -> Iterator[Formula]:
    latency = plan.latency
    pricer = None if latency is None else _pricer(plan)
    if latency is None or pricer is None:
        return
    yield _roof(plan, latency)
    if plan.pricer is not None:
        engine = plan.pricer.engine
        value = f"{format_seconds(engine.step_s)} a step, {format_seconds(engine.request_s)} a request in it"
        yield Formula(f"engine {engine.name}", "what it takes beside its kernels", engine.source, value)
    prefill, decode = latency.prefill, latency.decode
    steps = (
        (f"prefill of {format_count(prefill.tokens)} tokens", pricer.price(StepShape.prefill(prefill.tokens))),
        (
            f"decode of {format_count(decode.tokens)} x {format_count(decode.context)}",
            pricer.price(StepShape.decode(decode.context, decode.tokens)),
        ),
    )
    for name, price in steps:
        yield from (_part(name, part) for part in price.parts)
        yield _step(name, price)
    yield from _response(latency)


def _roof(plan: Plan, latency: Latency) -> Formula:
    formula = (
        "a kernel takes the larger (or a join) of bytes / bandwidth and FLOP / peak, at its shares of both, + starts"
    )
    if plan.placed is None or latency.ridge is None:
        return Formula("roofline", formula, "bandwidth and arithmetic as `kvwise probe` measured them", latency.machine)
    device = plan.placed.placement.device
    peaks = ", ".join(f"{name} {peak / 1e12:,.4g} TFLOP/s" for name, peak in device.peaks.items())
    numbers = f"{device.memory_bandwidth() / 1e9:,.4g} GB/s; {peaks}"
    return Formula("roofline", formula, numbers, f"turns at {latency.ridge:,.0f} FLOP per byte")


def _pricer(plan: Plan) -> StepPricer | None:
    if plan.placed is not None:
        return plan.pricer
    if plan.memory is None:
        return None
    from kvwise.planner.machine import machine_pricer

    try:
        return machine_pricer(plan.memory)
    except NotMeasured:
        return None


def _part(step: str, part: PartPrice) -> Formula:
    cost = part.cost
    return Formula(
        f"{step}: {part.kind.value}",
        "",
        f"{format_bytes(cost.moved_bytes)}: {format_seconds(part.memory_s)}; {cost.flops / 1e9:,.4g} GFLOP: "
        f"{format_seconds(part.arithmetic_s)}; {part.count} kernels: {format_seconds(part.fixed_s)}",
        f"{format_seconds(part.seconds)}, {part.bound}",
    )


def _step(step: str, price: StepPrice) -> Formula:
    parts = " + ".join(format_seconds(part.seconds) for part in price.parts)
    numbers = f"{parts} + {format_seconds(price.overhead_s)} beside kernels"
    value = f"{format_seconds(price.predicted_seconds)}, {price.bound}"
    return Formula(step, "sum of its kernels + the engine's own time", numbers, value)


def _response(latency: Latency) -> Iterator[Formula]:
    prompt, output, at_once = latency.prompt_tokens, latency.output_tokens, latency.concurrency
    tpot_s = 0.0 if latency.tpot_s is None else latency.tpot_s.value
    yield Formula(
        "TTFT", "waiting + steps of the prompt, with the decodes that share them",
        f"{format_count(prompt)} tokens, {latency.running} of {at_once} running", format_seconds(latency.ttft_s.value),
    )  # fmt: skip
    if latency.tpot_s is not None:
        yield Formula(
            "TPOT", "decode step + what prompts of others add to the mean one",
            f"{format_seconds(latency.decode.predicted_s)} + "
            f"{format_seconds(max(0.0, tpot_s - latency.decode.predicted_s))}",
            format_seconds(tpot_s),
        )  # fmt: skip
    yield Formula(
        "response", "TTFT + (output tokens - 1) x TPOT",
        f"{format_seconds(latency.ttft_s.value)} + {output - 1} x {format_seconds(tpot_s)}",
        format_seconds(latency.response_s.value),
    )  # fmt: skip
    yield Formula(
        "output", "requests at once x output tokens / response",
        f"{format_count(at_once)} x {format_count(output)} / {format_seconds(latency.response_s.value)}",
        f"{latency.output_tokens_per_s.value:,.1f} tokens/s",
    )  # fmt: skip
