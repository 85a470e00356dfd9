"""`volplane list`: the clusters of this user on this machine."""

from __future__ import annotations

import click
import msgspec

from volplane.cli.cluster_directory import OUTPUT
from volplane.cli.status import read_status
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.lifecycle import list_directories

HEAD = ("NAME", "PHASE", "SERVER", "DATA-DIR")


@click.command()
@OUTPUT
def command(output: str) -> None:
    """List the clusters of this user: the default one, and those that were started with --name."""
    found = [read_status(DataDirectory(path), name) for name, path in list_directories()]
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
        return
    rows = [(each.name or "(default)", each.phase.value, each.server or "-", each.data_dir) for each in found]
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    for row in (HEAD, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
