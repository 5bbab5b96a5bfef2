"""`kvwise devices`: what a plan can be made for without being there."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Optional

import typer

from kvwise.cli import options as o


def devices_command(
    name: Annotated[Optional[str], typer.Argument(help="Say all of one device.", show_default=False)] = None,  # noqa: UP045
    as_json: o.Json = False,
) -> None:
    """List devices for `kvwise plan --on`: memory, bandwidth, peaks and links, each figure with its source."""
    from kvwise.cli.output import people, print_json
    from kvwise.hardware.devices import devices, find_device

    chosen = devices() if name is None else (find_device(name),)
    if as_json:
        print_json({"devices": [asdict(device) for device in chosen]})
        return
    from kvwise.cli.device_tables import describe_device, device_table

    console = people(stderr=False)
    console.print(device_table(chosen))
    if name is not None:
        for line in describe_device(chosen[0]):
            console.print(line)
