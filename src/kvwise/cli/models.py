"""`kvwise models`: what can be run here without a network, and what can be planned by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvwise.cli import options as o

if TYPE_CHECKING:
    from rich.table import Table

    from kvwise.checkpoint.catalogue import CatalogueModel
    from kvwise.checkpoint.resolve import LocalModel


def models_command(as_json: o.Json = False) -> None:
    """List what can be run here, bundled and in the local caches, and what else can be planned by name."""
    from kvwise.checkpoint.catalogue import catalogue
    from kvwise.checkpoint.resolve import list_local_models
    from kvwise.cli.output import people, print_json

    models = list_local_models()
    if as_json:
        rows = [{"name": m.name, "path": str(m.path), "source": m.source, "bytes": m.nbytes} for m in models]
        known = [
            {"id": m.id, "also": m.also, "aliases": m.aliases, "parameters": m.parameters, "source": m.source}
            for m in catalogue()
        ]
        print_json({"models": rows, "catalogue": known})
        return
    console = people(stderr=False)
    if models:
        console.print(_local(models))
    else:
        console.print('No model is here yet. The first `kvwise run "Hi"` fetches the bundled one.')
    console.print(_catalogue(catalogue()))


def _local(models: Iterable[LocalModel]) -> Table:
    from rich.table import Table

    from kvwise.cli.output import printable
    from kvwise.units import format_bytes

    table = Table(title="here, to run", title_justify="left")
    for column in ("name", "source", "on disk", "path"):
        table.add_column(column, overflow="fold")  # a name that is cut off can't be typed
    for m in models:
        table.add_row(printable(m.name), m.source, format_bytes(m.nbytes), printable(str(m.path)))
    return table


def _catalogue(models: Iterable[CatalogueModel]) -> Table:
    from rich.table import Table

    from kvwise.units import format_count

    table = Table(title="in the catalogue, to plan by name", title_justify="left")
    table.add_column("name", overflow="fold")
    table.add_column("parameters", justify="right")
    table.add_column("also", overflow="fold")
    for m in models:
        names = [*m.aliases, *(repository.rpartition("/")[2] for repository in m.also)]
        table.add_row(m.id, format_count(m.parameters), ", ".join(names))
    return table
