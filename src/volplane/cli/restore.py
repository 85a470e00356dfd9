"""`volplane restore`: create a data directory from a backup."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from volplane.cli.cluster_directory import OUTPUT, describe_choice, directory_options
from volplane.cli.error import CommandError
from volplane.cli.progress import ProgressLine, describe_count
from volplane.cli.serve import enter_namespace
from volplane.cluster.backup import BackupError, RestoreSummary, restore_backup
from volplane.cluster.data_directory import DataDirectory


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@OUTPUT
@directory_options
def command(file: Path, output: str, layout: DataDirectory) -> None:
    """Create the data directory of a cluster from FILE, which `volplane backup` has written.

    The directory must not exist, or be empty. It appears complete, or not at all. The restored cluster is one
    of its own: it touches no container, mount or disk of the original, and gets other ports if the original
    still exists. It has the same certificates and tokens.
    """
    enter_namespace(layout, always=True)
    try:
        with ProgressLine() as progress:
            summary = restore_backup(
                file, layout.directory, lambda done, total: progress.update("restoring", done, total)
            )
    except BackupError as error:
        raise CommandError(str(error)) from error
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(summary), indent=2))
    else:
        _print(summary, layout)


def _print(summary: RestoreSummary, layout: DataDirectory) -> None:
    backup = summary.backup
    disks = describe_count(summary.disks, "disk")
    click.echo(f"restored {summary.directory} from {backup.created}, {disks}")
    if not backup.disks:
        click.echo(
            "  the backup has no disks: volumes are in the state error until their files are in"
            f" {layout.cloud / 'disks'} and {layout.shared}"
        )
    verb = "start" if layout.start_options.exists() else "up"
    click.echo(f"  start it with: volplane {verb}{describe_choice(layout)}")
