"""`volplane stop`: stop a cluster and keep its data."""

from __future__ import annotations

import click

from volplane.cli.cluster_directory import describe_choice, directory_options, require_cluster
from volplane.cli.error import CommandError
from volplane.cli.progress import ProgressLine
from volplane.cluster import lifecycle
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.leftovers import describe_leftovers


@click.command()
@directory_options
def command(layout: DataDirectory) -> None:
    """Stop a cluster: pods, volumes and disks. Its data is kept for `volplane start`.

    Works for clusters in the background and in the foreground. Exit code 0 also if it does not run; 1 if it
    was killed, and its containers and mounts are left.
    """
    require_cluster(layout)
    stop_cluster(layout)


def stop_cluster(layout: DataDirectory) -> None:
    """Stop and print what happened. Raises CommandError, also if containers or mounts are left."""
    if lifecycle.find_processes(layout).phase is lifecycle.ClusterPhase.STOPPED:
        _require_clean(layout, "does not run")
        click.echo(f"the cluster in {layout.directory} does not run")
        return
    click.echo("stopping: pods, volumes, disks")
    try:
        with ProgressLine() as progress:
            lifecycle.stop(layout, report=lambda: progress.update("stopping"))
    except lifecycle.StillRunning as error:
        raise CommandError(f"{error}; see volplane logs{describe_choice(layout)}") from error
    except PermissionError as error:
        raise CommandError(f"cannot stop {layout.directory}: it runs as another user") from error
    _require_clean(layout, "has stopped")
    click.echo("stopped")


def _require_clean(layout: DataDirectory, state: str) -> None:
    if left := describe_leftovers(layout):
        raise CommandError(
            f"the cluster in {layout.directory} {state}, but {left} of a killed run remain: start and"
            " stop it once to remove them"
        )
