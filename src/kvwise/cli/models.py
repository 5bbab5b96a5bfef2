"""`kvwise models`: what can be run here without a network."""

from __future__ import annotations

from kvwise.cli import options as o


def models_command(as_json: o.Json = False) -> None:
    """List the bundled model and those in the local caches."""
    from kvwise.checkpoint.resolve import list_local_models
    from kvwise.cli.output import people, print_json, printable

    models = list_local_models()
    if as_json:
        rows = [{"name": m.name, "path": str(m.path), "source": m.source, "bytes": m.nbytes} for m in models]
        print_json({"models": rows})
        return
    from rich.table import Table

    from kvwise.units import format_bytes

    console = people(stderr=False)
    if not models:
        console.print('No model is here yet. The first `kvwise run "Hi"` fetches the bundled one.')
        return
    table = Table()
    for column in ("name", "source", "on disk", "path"):
        table.add_column(column, overflow="fold")  # a name that is cut off can't be typed
    for m in models:
        table.add_row(printable(m.name), m.source, format_bytes(m.nbytes), printable(str(m.path)))
    console.print(table)
