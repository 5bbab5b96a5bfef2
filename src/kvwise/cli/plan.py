"""`kvwise plan`: what a model takes in memory, as tables or as one JSON object."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final, Optional

import typer

from kvwise.cli import options as o
from kvwise.errors import UsageError
from kvwise.units import GB, GiB, KiB, MiB, TiB

if TYPE_CHECKING:
    from kvwise.planner.counterfactuals import Judgement

_UNITS: Final = {
    "": 1, "b": 1, "kib": KiB, "mib": MiB, "gib": GiB, "tib": TiB, "kb": 10**3, "mb": 10**6, "gb": GB, "tb": 10**12,
}  # fmt: skip


def plan_command(
    model: Annotated[Optional[str], typer.Argument(help="A path or a name (see `kvwise models`).")] = None,  # noqa: UP045
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
    on: Annotated[Optional[str], typer.Option(help="On devices: a10g, h100:4, h100:tp2,pp2.")] = None,  # noqa: UP045
    target: Annotated[Optional[str], typer.Option(help="Fail (exit 3) unless it keeps ttft=1s,tpot=50ms.")] = None,  # noqa: UP045
    force: Annotated[bool, typer.Option("--force", help="Take it anyway: never fail, and say so in the JSON.")] = False,
    as_json: o.Json = False,
) -> None:
    """Say what MODEL takes in memory, here or on other devices. Reads no weights; a bare config.json is enough."""
    from kvwise.planner.counterfactuals import judge
    from kvwise.planner.memory import plan, plan_shape
    from kvwise.planner.target import Target

    wanted = None if target is None else Target.parse(target)
    shape = {"--layers": layers, "--kv-heads": kv_heads, "--head-dim": head_dim}
    limit = None if memory is None else parse_bytes("--memory", memory)
    if model is not None:
        stray = [
            name for name, value in {"--params": params, **shape, "--q-heads": q_heads}.items() if value is not None
        ]
        if stray:
            raise UsageError(f"{stray[0]} beside a model", expected="a model or a shape")
        pictures = [parse_picture("--picture", text) for text in picture or ()]
        result = plan(
            model, context=context, pictures=pictures, batch=batch, kv_dtype=kv_dtype, weights=weights,
            memory_limit=limit, on=on,
        )  # fmt: skip
    else:
        if picture:
            raise UsageError("--picture without a model")
        if params is None:
            raise UsageError(
                "there is no model", expected="MODEL, or --params with --layers, --kv-heads and --head-dim"
            )
        if layers is None or kv_heads is None or head_dim is None:
            missing = [name for name, value in shape.items() if value is None]
            raise UsageError(f"--params without {', '.join(missing)}")
        result = plan_shape(
            params=params, layers=layers, kv_heads=kv_heads, head_dim=head_dim, q_heads=q_heads, context=context,
            batch=batch, kv_dtype=kv_dtype, weights="bf16" if weights is None else weights, memory_limit=limit, on=on,
        )  # fmt: skip
    judgement = judge(result, wanted, forced=force)
    _print(judgement, as_json)
    if check or limit is not None or wanted is not None:
        judgement.check()


def _print(judgement: Judgement, as_json: bool) -> None:
    from kvwise.cli.output import people, print_json

    if as_json:
        print_json(judgement.to_json())
    else:
        from kvwise.cli.plan_tables import render_changes, render_plan

        console = people(stderr=False)
        render_plan(judgement.plan, console)
        render_changes(judgement, console)


def parse_bytes(option: str, text: str) -> int:
    """'8GiB', '8 GB' or '1073741824' in bytes. Raises UsageError."""
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None or float(match[1]) <= 0:
        raise UsageError(f"{option} is {text!r}", expected="a size such as 8GiB, 500MiB or 8GB")
    return int(float(match[1]) * unit)


def parse_picture(option: str, text: str) -> tuple[int, int]:
    """'512x384' as (width, height). Raises UsageError."""
    match = re.fullmatch(r"\s*(\d{1,6})\s*[xX×]\s*(\d{1,6})\s*", text)
    if match is None:
        raise UsageError(f"{option} is {text!r}", expected="width and height in pixels, such as 512x384")
    return int(match[1]), int(match[2])
