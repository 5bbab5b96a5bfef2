"""A simulation as people read it: is it enough, how long things take, how full it is, which load it bears."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvwise.units import format_count, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from kvwise.planner.capacity import Capacity, Deployment
    from kvwise.planner.load_changes import LoadChange
    from kvwise.planner.simulation.results import Distribution, Summary
    from kvwise.planner.simulation.slo import Search, Slo, Verdict

_SHOWN_CHARS: Final = 200  # of a name, which a file may make as long as it likes
_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_MEANINGS: Final = {
    "queueing": "until the first step computes it",
    "ttft": "until the first token",
    "tpot": "each later token, of one request in the mean",
    "itl": "between two tokens, each by itself",
    "e2e": "until the last token",
}


def render_capacity(capacity: Capacity, console: Console) -> None:
    """All that was asked for. Prints to `console`, nothing else."""
    from kvwise.cli.output import printable

    deployment, summary, load = capacity.deployment, capacity.summary, capacity.load
    console.print(printable(f"{deployment.plan.model[:_SHOWN_CHARS]} on {deployment.placement}"), style="bold")
    console.print(_engine(deployment))
    if summary is not None and load is not None:
        offered = f" ({load.rate:.3g} requests/s offered)" if load.rate is not None else ""
        console.print(printable(f"load: {format_count(summary.num_requests)} requests, {load.source}{offered}"))
        if summary.num_served < summary.num_requests:
            refused = summary.num_requests - summary.num_served
            console.print(printable(f"refused: {format_count(refused)}, such as: {summary.refusals[0]}"))
        console.print(_latencies(summary))
        console.print(_throughput(summary))
        _print_timeline(summary, console)
    if capacity.slo is not None and capacity.verdict is not None:
        console.print(_verdict(capacity.slo, capacity.verdict))
    if capacity.search is not None:
        console.print(_answer(capacity.search))
        console.print(_trials(capacity.search))


def render_changes(changes: Sequence[LoadChange], console: Console) -> None:
    """Single changes with which the load keeps its SLO. Prints to `console`, nothing else."""
    if not changes:
        console.print("no single change that was tried keeps the SLO")
        return
    names = list(changes[0].verdict.observed)
    table = _table("each of these alone keeps the SLO", *names, "good", "quality")
    for found in changes:
        observed = (_seconds(value) for value in found.verdict.observed.values())
        table.add_row(found.change.words, *observed, f"{found.verdict.good_share:.1%}", found.quality or "the same")
    console.print(table)


def _engine(deployment: Deployment) -> str:
    setup = deployment.setup
    limits = setup.limits
    return (
        f"{format_count(deployment.pool_tokens)} tokens of K and V in {deployment.plan.kv.kv_type.name}; at most "
        f"{format_count(limits.max_requests)} requests and {format_count(limits.max_tokens)} tokens in a step, "
        f"{format_count(limits.max_context)} tokens in a request; step times of {deployment.engine}"
    )


def _latencies(summary: Summary) -> Table:
    table = _table("predicted seconds", "mean", "p50", "p90", "p95", "p99", "max", "")
    for name, meaning in _MEANINGS.items():
        distribution = summary.latencies[name]
        if distribution is not None:
            table.add_row(name, *_figures(distribution), meaning)
    return table


def _figures(distribution: Distribution) -> list[str]:
    values = (distribution.mean, *distribution.percentiles.values(), distribution.max)
    return [format_seconds(value) for value in values]


def _throughput(summary: Summary) -> Table:
    table = _table("throughput and cache", "")
    rows = (
        ("served", f"{format_count(summary.num_served)} requests in {format_seconds(summary.seconds)}"),
        ("requests", f"{summary.requests_per_s:.3g} /s"),
        ("output tokens", f"{summary.output_tokens_per_s:,.0f} /s"),
        ("all tokens", f"{summary.total_tokens_per_s:,.0f} /s"),
        ("steps", f"{format_count(summary.num_steps)}, running {summary.busy:.0%} of the time"),
        ("requests running", f"{summary.running_mean:.1f} in the mean, {format_count(summary.running_peak)} at most"),
        ("requests waiting", f"{format_count(summary.waiting_peak)} at most"),
        ("blocks in use", f"{summary.cache_mean:.1%} in the mean, {summary.cache_peak:.1%} at most"),
        ("found in the cache", f"{summary.hit_rate:.1%} of the tokens looked up"),
        ("preemptions", format_count(summary.num_preemptions)),
    )
    for row in rows:
        table.add_row(*row)
    return table


def _print_timeline(summary: Summary, console: Console) -> None:
    if not summary.timeline:
        return
    moments = summary.timeline
    series = (
        ("running", [m.running for m in moments], summary.running_peak),
        ("waiting", [m.waiting for m in moments], summary.waiting_peak),
        ("blocks", [m.used_blocks for m in moments], summary.num_blocks),
    )
    console.print(f"over {format_seconds(summary.seconds)}, of its most:", style="dim")
    for name, values, most in series:
        console.print(f"  {name:8} |{_curve(values, most)}| {format_count(most)}")


def _curve(values: Sequence[float], most: float) -> str:
    """A bar for each value, as high as its share of `most`."""
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round(min(1.0, value / most) * top)] if most else _LEVELS[0] for value in values)


def _verdict(slo: Slo, verdict: Verdict) -> str:
    parts = ", ".join(
        f"{name} p{slo.percentile:g} {_seconds(value)} of {format_seconds(slo.limits[name])}"
        for name, value in verdict.observed.items()
    )
    word = "keeps" if verdict.kept else "misses"
    return (
        f"{word} the SLO: {parts}; {verdict.good_share:.1%} of the requests keep all limits ({verdict.goodput:.3g} /s)"
    )


def _word(verdict: Verdict) -> str:
    if verdict.kept:
        return "keeps"
    return "overloaded: misses" if verdict.overloaded else "misses"


def _seconds(value: float | None) -> str:
    return "none" if value is None else format_seconds(value)


def _answer(search: Search) -> str:
    if search.best is None:
        least = search.trials[0].load
        return f"no load keeps the SLO: {_level(search, least)} misses it already"
    found = f"highest load that keeps the SLO: {_level(search, search.best)}"
    return found if search.ceiling is None else f"{found}; {_level(search, search.ceiling)} misses it"


def _level(search: Search, load: float) -> str:
    return f"{load:.3g} {search.unit}"


def _trials(search: Search) -> Table:
    slo = search.slo
    names = list(slo.limits)
    table = _table("loads tried", *(f"{name} p{slo.percentile:g}" for name in names), "good", "served", "output", "")
    for trial in search.trials:
        verdict = trial.verdict
        observed = [verdict.observed[name] for name in names]
        table.add_row(
            _level(search, trial.load),
            *(_seconds(value) for value in observed),
            f"{verdict.good_share:.1%}",
            f"{trial.requests_per_s:.3g} /s",
            f"{trial.output_tokens_per_s:,.0f} tokens/s",
            _word(verdict),
        )
    return table


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right" if name else "left")
    return table
