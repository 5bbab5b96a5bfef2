"""`kvwise simulate`: how a model holds up under load on a machine, and the highest load that keeps an SLO."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Optional

import typer

from kvwise.cli import options as o
from kvwise.errors import DoesNotFit, UsageError

if TYPE_CHECKING:
    from kvwise.planner.capacity import Capacity, Deployment
    from kvwise.planner.load_changes import LoadChange
    from kvwise.planner.simulation.asked import Asked
    from kvwise.planner.simulation.slo import Slo

JSON_VERSION: Final = 1


def simulate_command(
    model: Annotated[str, typer.Argument(help="A path or a name (see `kvwise models`).")],
    on: Annotated[str, typer.Option(help="Devices: a10g, h100:4, h100:tp2,pp2; this: this machine.")] = "this",
    rate: Annotated[Optional[float], typer.Option(help="Requests/s on average, independent of each other.")] = None,  # noqa: UP045
    concurrency: Annotated[Optional[int], typer.Option(help="Requests at a time, the next when one ends.")] = None,  # noqa: UP045
    trace: Annotated[Optional[Path], typer.Option(help="Requests of a trace: Azure's CSV or Mooncake's JSONL.")] = None,  # noqa: UP045
    lengths: Annotated[
        str, typer.Option(help="Without a trace: azure-conv, azure-code, mooncake or PROMPT:OUTPUT.")
    ] = "azure-conv",
    requests: Annotated[Optional[int], typer.Option(help="So many; default: 1000, or all of the trace.")] = None,  # noqa: UP045
    seed: Annotated[int, typer.Option(help="Same seed, same requests at the same times.")] = 0,
    slo: Annotated[Optional[str], typer.Option(help="Find the highest load that keeps ttft=1s,tpot=50ms.")] = None,  # noqa: UP045
    percentile: Annotated[float, typer.Option(help="Of the requests, that must keep each limit of the SLO.")] = 99.0,
    check: Annotated[bool, typer.Option("--check", help="Fail (exit 3) unless the load given keeps the SLO.")] = False,
    changes: Annotated[bool, typer.Option("--changes", help="Where it misses: single changes that keep it.")] = False,
    context: o.Context = None,
    max_requests: Annotated[Optional[int], typer.Option(help="Most requests in a step.")] = None,  # noqa: UP045
    step_tokens: Annotated[Optional[int], typer.Option(help="Most tokens in a step.")] = None,  # noqa: UP045
    kv_dtype: o.KvDtype = "f16",
    weights: Annotated[Optional[str], typer.Option(help="Weights of this type: q4_0, fp8, bf16, ...")] = None,  # noqa: UP045
    engine: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Whose step times: vllm (or the preset's), trtllm, sglang, llamacpp, or roofline for none."),
    ] = None,
    preset: o.Preset = None,
    switch: o.Switches = None,
    memory: Annotated[Optional[str], typer.Option(help="Of each device, at most: 8GiB.")] = None,  # noqa: UP045
    prefix_cache: Annotated[bool, typer.Option(help="Find prompts' beginnings in the cache.")] = True,
    chart: Annotated[Optional[Path], typer.Option(help="Draw latency against load: a .svg, .png or .html.")] = None,  # noqa: UP045
    as_json: o.Json = False,
) -> None:
    """Serve requests on a virtual clock by the real scheduler and cache, and say how long they take. Loads nothing."""
    from kvwise.cli.output import people, print_json
    from kvwise.cli.policies import policy_on_devices
    from kvwise.cli.quantities import parse_bytes
    from kvwise.cli.simulate_tables import render_capacity, render_changes
    from kvwise.planner.capacity import deploy
    from kvwise.planner.simulation.asked import Asked
    from kvwise.planner.simulation.slo import Slo

    if chart is not None:
        from kvwise.charts.write import check_can_write

        check_can_write(chart)
    wanted = None if slo is None else Slo.parse(slo, percentile)
    if check and wanted is None:
        raise UsageError("--check without --slo", expected="what to check")
    asked = Asked.of(rate, concurrency, trace, lengths, requests, seed)
    if changes and wanted is None:
        raise UsageError("--changes without --slo", expected="what they should keep")
    if asked.given is None and (wanted is None or check or changes):
        raise UsageError("there is no load", expected="--rate, --concurrency or --trace")
    limit = None if memory is None else parse_bytes("--memory", memory)
    deployment = deploy(
        model, on=on, context=context, max_requests=max_requests, step_tokens=step_tokens, kv_dtype=kv_dtype,
        weights=weights, memory_limit=limit, engine=engine, policy_of=policy_on_devices(preset, switch, on),
        prefix_cache=prefix_cache,
    )  # fmt: skip
    capacity = _measure(deployment, asked, wanted)
    if chart is not None:
        _draw(chart, deployment, asked, capacity)
    missed = capacity.verdict is not None and not capacity.verdict.kept
    found = _changes(deployment, asked, wanted) if changes and missed and wanted is not None else ()
    if as_json:
        placed = deployment.plan.placed
        policy = None if placed is None else asdict(placed.policy)
        told = {"policy": policy, "changes": [change.to_json() for change in found]}
        print_json({"version": JSON_VERSION, **capacity.to_json(), **told})
    else:
        console = people(stderr=False)
        render_capacity(capacity, console)
        if changes and missed:
            render_changes(found, console)
    if check and missed:
        raise DoesNotFit(f"the load misses the SLO {slo}", expected=f"p{percentile:g} within each limit")


def _measure(deployment: Deployment, asked: Asked, slo: Slo | None) -> Capacity:
    """Simulate the load that was given, and look for the highest that keeps the SLO, drawing a bar meanwhile."""
    from kvwise.cli.output import counting_bar, people
    from kvwise.planner.capacity import measure_capacity

    with counting_bar(people(), "simulating") as progress:
        return measure_capacity(deployment, asked, slo, progress)


def _draw(path: Path, deployment: Deployment, asked: Asked, capacity: Capacity) -> None:
    from kvwise.cli.load_chart import draw_load
    from kvwise.cli.output import counting_bar, people

    with counting_bar(people(), "simulating what is drawn") as progress:
        draw_load(path, deployment, asked, capacity, progress)


def _changes(deployment: Deployment, asked: Asked, slo: Slo) -> tuple[LoadChange, ...]:
    from kvwise.cli.output import counting_bar, people
    from kvwise.planner.load_changes import changes_that_keep

    with counting_bar(people(), "trying changes") as progress:
        return tuple(changes_that_keep(deployment, asked, slo, progress))
