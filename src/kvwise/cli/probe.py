"""`kvwise probe`: what this machine can do, measured, for predictions of latency."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final, Optional

import typer

from kvwise.cli import options as o

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.table import Table

    from kvwise.hardware.profile import DeviceProfile, StreamFigures
    from kvwise.planner.probe import ProbeResult

Models = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(metavar="[MODEL]...", help="What it is for; default: the models that are here."),
]
# What most models are made of, where none is named and none is here.
_USUAL_MATMULS: Final = ("q8_0", "q8_0*q8")
_USUAL_WIDTHS: Final = (64, 128)
_CACHED, _MEMORY = 0.0, 1e12  # working sets: of a core's cache, and larger than any


def probe_command(
    models: Models = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few points, once: a second for each kind of weights.")
    ] = False,
    threads: o.Threads = None,
    kv_dtype: o.KvDtype = "f16",
    backend: o.BackendName = "native",
    as_json: o.Json = False,
) -> None:
    """Measure this machine: bandwidth by working set, arithmetic by rows, attention, fixed costs. Keeps a profile."""
    from kvwise.backends import BACKENDS
    from kvwise.cli.output import people, print_json
    from kvwise.engine.model import Settings, usable_threads
    from kvwise.errors import UsageError
    from kvwise.planner.probe import machine_profile_path, probe_machine
    from kvwise.planner.probe_samples import ALL, FEW

    stored = BACKENDS[backend].kv_types
    if kv_dtype not in stored:
        raise UsageError(
            f"the {backend} backend stores no K and V in {kv_dtype}", expected=f"one of {', '.join(stored)}"
        )
    count = usable_threads(Settings(threads=threads))
    kinds = sorted(set(_kinds(models or [], backend, kv_dtype)))
    start = time.monotonic()
    with ExitStack() as stack:
        report = _progress(people(), stack)
        result = probe_machine(backend, count, kinds, points=FEW if quick else ALL, report=report)
    took_s = time.monotonic() - start
    path = machine_profile_path(backend, count)
    if as_json:
        print_json(probe_json(result, took_s, str(path)))
    else:
        print_profile(result, took_s, str(path), people(stderr=False))


def _kinds(models: Sequence[str], backend: str, kv_dtype: str) -> Iterator[str]:
    """Of the models that are named or here. Raises for a named one that can't be opened."""
    from kvwise.checkpoint.resolve import list_local_models
    from kvwise.engine.model import open_model
    from kvwise.errors import KvwiseError

    found = False
    for name in models or [str(model.path) for model in list_local_models()]:
        try:
            with open_model(name, backend=backend, kv_dtype=kv_dtype, allow_download=bool(models)) as opened:
                yield from opened.stream_kinds
                found = True
        except KvwiseError:
            if models:
                raise
    if not found:
        yield from _USUAL_MATMULS
        yield from (f"kv {kv_dtype} x {width}" for width in _USUAL_WIDTHS)


def _progress(console: Console, stack: ExitStack) -> Any:
    """A callback that draws a bar on a terminal; None elsewhere."""
    if not console.is_terminal:
        return None
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    name = TextColumn("{task.description}", markup=False)
    bar = stack.enter_context(Progress(name, BarColumn(), TimeElapsedColumn(), console=console, transient=True))
    task = bar.add_task("measuring", total=1.0)
    return lambda what, share: bar.update(task, description=f"measuring {what}", completed=share)


def probe_json(result: ProbeResult, took_s: float, path: str) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "profile": asdict(result.profile),
        "spreads": dict(result.spreads),
        "disturbed": list(result.disturbed),
        "changes": dict(result.changes),
        "seconds": took_s,
        "path": path,
    }


def print_profile(result: ProbeResult, took_s: float, path: str, console: Console) -> None:
    """The tables for people, and whether the measurement was disturbed."""
    from kvwise.planner.probe import DISTURBED

    profile = result.profile
    console.print(f"{profile.device}, {profile.threads} threads", style="bold")
    console.print(_streams(profile, "kv ", wanted=False))
    console.print(_streams(profile, "kv ", wanted=True))
    console.print(_rows(profile))
    fixed = (
        f"an op {_us(profile.op_seconds)}, a pass over the threads {_us(profile.pass_seconds)}, a step "
        f"{_us(profile.step_seconds)}, each further request {_us(profile.request_seconds)}"
    )
    console.print(f"fixed: {fixed}")
    console.print(
        f"measured in {took_s:.1f} s, within {profile.spread:.0%} of the middle of rounds; kept in {path}", style="dim"
    )
    if result.changes:
        told = (f"{what} {_change(ratio)}" for what, ratio in result.changes.items())
        console.print(f"since the profile before: {', '.join(told)}")
    if result.disturbed:
        console.print(
            f"disturbed: {', '.join(result.disturbed)} differed by more than {DISTURBED:.0%} between rounds; something "
            "else runs here, or clocks change: measure again when it is quiet",
            style="yellow",
        )


def _change(ratio: float) -> str:
    return f"{abs(ratio - 1):.0%} {'faster' if ratio >= 1 else 'slower'}"


def _streams(profile: DeviceProfile, prefix: str, *, wanted: bool) -> Table:
    """Matmuls, or attention: from cache and from memory for one row, then arithmetic by rows."""
    chosen = {kind: s for kind, s in profile.streams.items() if kind.startswith(prefix) is wanted}
    rows = sorted({n for stream in chosen.values() for n, _ in stream.by_rows})
    per = "queries" if wanted else "rows"
    title = "attention: K and V" if wanted else "matmuls: weights"
    title = f"{title} read (GB/s), then multiplied (10^9 bytes x {per} per second)"
    made = _table(title, "cache", "memory", *(f"{n:g} {per}" for n in rows))
    for kind, stream in sorted(chosen.items()):
        made.add_row(kind, _speed(stream, 1, _CACHED), _speed(stream, 1, _MEMORY), *_rates(stream, rows))
    return made


def _speed(stream: StreamFigures, rows: float, working_set: float) -> str:
    return f"{1e-9 / stream.seconds_per_byte(rows, working_set):.1f}"


def _rates(stream: StreamFigures, rows: Sequence[float]) -> list[str]:
    """Bytes x rows per second, from memory: what arithmetic reaches."""
    measured = {n for n, _ in stream.by_rows}
    return [f"{1e-9 * n / stream.seconds_per_byte(n, _MEMORY):.0f}" if n in measured else "" for n in rows]


def _rows(profile: DeviceProfile) -> Table:
    made = _table("ops on rows (GB/s of activations)", "one thread", "all threads", "beyond a core's cache")
    for kind, points in sorted(profile.rows.items()):
        made.add_row(kind, *(f"{1e-9 * moved / seconds:.0f}" for moved, seconds in points))
    return made


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in ("", *columns):
        table.add_column(name, justify="right" if name else "left")
    return table


def _us(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds * 1e6:.1f} us"
