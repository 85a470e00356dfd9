"""`volplane backup`: write a cluster to one file, while it runs."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from volplane.cli.cluster_directory import OUTPUT, directory_options
from volplane.cli.error import CommandError
from volplane.cli.progress import ProgressLine, describe_bytes, describe_count
from volplane.cli.serve import enter_namespace
from volplane.cluster.backup import BackupError, BackupSummary, create_backup
from volplane.cluster.data_directory import DataDirectory


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--disks", is_flag=True, help="include the content of volumes and snapshots")
@OUTPUT
@directory_options
def command(file: Path, disks: bool, output: str, layout: DataDirectory) -> None:
    """Write a cluster to FILE, a tar archive. The cluster may run, and be in use.

    Objects are as of one moment; with --disks, each disk is as of one moment, too. FILE contains the keys of
    the cluster: keep it private. It must not exist. If the backup fails or is interrupted, there is no FILE.
    """
    target = file.expanduser().absolute()
    enter_namespace(layout, always=True)
    if target.is_relative_to(layout.directory):
        raise CommandError(f"{target} is in the data directory: choose a file outside")
    try:
        with ProgressLine() as progress:
            summary = create_backup(layout, target, disks=disks, report=progress.update)
    except BackupError as error:
        raise CommandError(str(error)) from error
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(summary), indent=2))
    else:
        _print(summary, with_disks=disks)


def _print(summary: BackupSummary, *, with_disks: bool) -> None:
    content = (
        f"objects, {describe_count(summary.disks, 'disk')}, {describe_count(summary.snapshots, 'snapshot')},"
        f" {describe_count(summary.files, 'shared file')}"
        if with_disks
        else "objects without disks (--disks includes them)"
    )
    click.echo(f"{summary.file}: {describe_bytes(summary.size)}, {content}")
    for path in summary.unsteady:
        click.echo(f"  {path} was written while it was read")
    for path in summary.deleted:
        click.echo(f"  {path} was deleted meanwhile, and is empty in the backup")
