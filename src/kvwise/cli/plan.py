"""`kvwise plan`: what a model takes in memory and time, as tables or as one JSON object; compared, swept, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from kvwise.cli import options as o
from kvwise.cli.quantities import parse_bytes, parse_counts, parse_picture, split_places
from kvwise.errors import UsageError

if TYPE_CHECKING:
    from kvwise.planner.counterfactuals import Judgement
    from kvwise.planner.plan import Plan
    from kvwise.planner.sweep import PolicyOf

Models = Annotated[Optional[list[str]], typer.Argument(metavar="[MODEL]", help="A path or a name: `kvwise models`.")]  # noqa: UP045
Places = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="On devices: a10g, h100:4, h100:tp2,pp2; of a sweep or a comparison several: a,b,c."),
]


def plan_command(
    models: Models = None,
    context: Annotated[Optional[int], typer.Option("--context", help="Tokens of each request.")] = None,  # noqa: UP045
    batch: Annotated[int, typer.Option("--batch", help="Requests at the same time.")] = 1,
    picture: Annotated[Optional[list[str]], typer.Option(help="512x512, beside the text; repeatable.")] = None,  # noqa: UP045
    kv_dtype: o.KvDtype = "f16",
    weights: Annotated[Optional[str], typer.Option(help="Plan for weights of this type: q4_0, int8, bf16, ...")] = None,  # noqa: UP045
    params: Annotated[Optional[float], typer.Option(help="A shape instead of a model: parameters, 7e9.")] = None,  # noqa: UP045
    layers: Annotated[Optional[int], typer.Option(help="With --params: layers.")] = None,  # noqa: UP045
    kv_heads: Annotated[Optional[int], typer.Option(help="With --params: KV heads.")] = None,  # noqa: UP045
    head_dim: Annotated[Optional[int], typer.Option(help="With --params: elements of a head.")] = None,  # noqa: UP045
    q_heads: Annotated[Optional[int], typer.Option(help="With --params: query heads, for the MHA figure.")] = None,  # noqa: UP045
    memory: Annotated[Optional[str], typer.Option(help="Fail (exit 3) unless it fits into this: 8GiB.")] = None,  # noqa: UP045
    check: Annotated[bool, typer.Option("--check", help="Fail (exit 3) unless it fits the machine.")] = False,
    on: Places = None,
    preset: o.Preset = None,
    switch: o.Switches = None,
    target: Annotated[Optional[str], typer.Option(help="Fail (exit 3) unless it keeps ttft=1s,tpot=50ms.")] = None,  # noqa: UP045
    force: Annotated[bool, typer.Option("--force", help="Take it anyway: never fail, and say so in the JSON.")] = False,
    details: Annotated[
        bool, typer.Option("--details", help="More tables: weights, KV cache, other heads, bounds.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Every formula with its numbers.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="MODEL... and devices, given together, side by side.")
    ] = False,
    contexts: Annotated[Optional[str], typer.Option(help="Sweep over contexts: 2k,8k,32k.")] = None,  # noqa: UP045
    batches: Annotated[Optional[str], typer.Option(help="Sweep over requests at the same time: 1,8,32.")] = None,  # noqa: UP045
    csv: Annotated[Optional[Path], typer.Option(help="Write the points of a sweep to this file.")] = None,  # noqa: UP045
    chart: Annotated[Optional[Path], typer.Option(help="Draw it: a file that ends in .svg, .png or .html.")] = None,  # noqa: UP045
    as_json: o.Json = False,
) -> None:
    """Say what MODEL takes in memory, here or on other devices. Reads no weights; a bare config.json is enough."""
    from kvwise.cli.policies import policy_of
    from kvwise.planner.counterfactuals import judge
    from kvwise.planner.target import Target

    if chart is not None:
        from kvwise.charts.write import check_can_write

        check_can_write(chart)
    names = models or []
    wanted = None if target is None else Target.parse(target)
    limit = None if memory is None else parse_bytes("--memory", memory)
    asked = {"kv_dtype": kv_dtype, "memory_limit": limit}
    policies = policy_of(preset, switch)
    swept = contexts is not None or batches is not None
    if compare or swept:
        given = {"--explain": explain, "--chart": chart, "--target": wanted, "--params": params, "--picture": picture,
                 "--check": check, "--force": force, "--details": details}  # fmt: skip
        stray = [name for name, value in given.items() if value]
        if stray or (compare and swept):
            other = "a sweep" if swept else "--compare"
            raise UsageError(f"{stray[0] if stray else '--compare'} beside {other}", expected="one of the two")
        if not names:
            raise UsageError("there is no model", expected="MODEL")
        asked["weights"] = weights
        if compare:
            _compare(names, on, context, batch, policies, asked, as_json)
        else:
            _sweep(names, on, contexts or str(context or 4096), batches or str(batch), policies, asked, csv, as_json)
        return
    if csv is not None:
        raise UsageError("--csv without a sweep", expected="--contexts or --batches")
    if len(names) > 1:
        raise UsageError(f"{len(names)} models", expected="one, or --compare")
    shape = {"--layers": layers, "--kv-heads": kv_heads, "--head-dim": head_dim, "--q-heads": q_heads}
    if names:
        stray = [name for name, value in {"--params": params, **shape}.items() if value is not None]
        if stray:
            raise UsageError(f"{stray[0]} beside a model", expected="a model or a shape")
        pictures = [parse_picture("--picture", text) for text in picture or ()]
        result = _plan(
            names[0], on, policies, context=context, batch=batch, weights=weights, pictures=pictures, **asked
        )
    else:
        if picture:
            raise UsageError("--picture without a model")
        if policies is not None:
            raise UsageError("--preset or --set without a model", expected="MODEL")
        result = _shape(params, shape, context=context, batch=batch, weights=weights or "bf16", on=on, **asked)
    judgement = judge(result, wanted, forced=force)
    _print(judgement, as_json, details=details, explained=explain)
    _draw(judgement.plan, chart)
    if check or limit is not None or wanted is not None:
        judgement.check()


def _plan(model: str, on: str | None, policies: PolicyOf | None, **asked: Any) -> Plan:
    """On one placement, or here."""
    from kvwise.hardware.devices import parse_placement
    from kvwise.planner.memory import plan

    placement = None if on is None else parse_placement(on)
    if policies is None:
        return plan(model, on=placement, **asked)
    if placement is None or placement.is_this_machine:
        raise UsageError("--preset or --set without devices", expected="--on, whose memory is divided so")
    return plan(model, on=placement, policy=policies(placement), **asked)


def _shape(params: float | None, shape: dict[str, int | None], **asked: Any) -> Plan:
    from kvwise.planner.memory import plan_shape

    if params is None:
        raise UsageError("there is no model", expected="MODEL, or --params with --layers, --kv-heads and --head-dim")
    missing = [name for name, value in shape.items() if value is None and name != "--q-heads"]
    if missing:
        raise UsageError(f"--params without {', '.join(missing)}")
    sizes: dict[str, Any] = {name.strip("-").replace("-", "_"): value for name, value in shape.items()}
    return plan_shape(params=params, **sizes, **asked)


def _compare(
    names: list[str], on: str | None, context: int | None, batch: int, policies: PolicyOf | None, asked: dict[str, Any],
    as_json: bool,
) -> None:  # fmt: skip
    """Every model that is named on every device that is."""
    from kvwise.cli.compare_tables import JSON_VERSION, comparison, tell_apart
    from kvwise.cli.output import people, print_json

    models, places = tell_apart(names)
    places += [] if on is None else split_places(on)
    if not models:
        raise UsageError("only devices are named", expected="a model beside them")
    plans = [
        _plan(model, place, policies, context=context, batch=batch, **asked)
        for model in models
        for place in (*places,) or (None,)
    ]
    if as_json:
        print_json({"version": JSON_VERSION, "plans": [plan.to_json() for plan in plans]})
    else:
        people(stderr=False).print(comparison(plans))


def _sweep(
    names: list[str], on: str | None, contexts: str, batches: str, policies: PolicyOf | None, asked: dict[str, Any],
    csv: Path | None, as_json: bool,
) -> None:  # fmt: skip
    from kvwise.cli.output import counting_bar, people, print_json
    from kvwise.cli.sweep_tables import render_sweep, write_csv
    from kvwise.planner.sweep import sweep

    if len(names) > 1:
        raise UsageError(f"a sweep of {len(names)} models", expected="one")
    places = ["this"] if on is None else split_places(on)
    if policies is not None:
        if "this" in places:
            raise UsageError("--preset or --set without devices", expected="--on, whose memory is divided so")
        asked["policy_of"] = policies
    with counting_bar(people(), "planning") as progress:
        swept = sweep(
            names[0], contexts=parse_counts("--contexts", contexts), batches=parse_counts("--batches", batches),
            on=places, progress=progress, **asked,
        )  # fmt: skip
    if csv is not None:
        write_csv(swept, csv)
    if as_json:
        print_json(swept.to_json())
    else:
        render_sweep(swept, people(stderr=False))


def _draw(plan: Plan, path: Path | None) -> None:
    """Memory against context, and what bounds prefill and decode where that is known."""
    if path is not None:
        from kvwise.charts.plans import PlanCharts, write_plan_charts

        write_plan_charts(PlanCharts.of(plan), path)


def _print(judgement: Judgement, as_json: bool, *, details: bool, explained: bool) -> None:
    from kvwise.cli.output import people, print_json
    from kvwise.planner.explain import explain

    formulas = explain(judgement.plan) if explained else ()
    if as_json:
        told = {"explain": [formula.to_json() for formula in formulas]} if explained else {}
        print_json({**judgement.to_json(), **told})
        return
    from kvwise.cli.plan_tables import render_changes, render_details, render_formulas, render_plan

    console = people(stderr=False)
    render_plan(judgement.plan, console)
    if details:
        render_details(judgement.plan, console)
    if explained:
        render_formulas(formulas, console)
    render_changes(judgement, console)
