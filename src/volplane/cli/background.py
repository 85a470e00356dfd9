"""Start a cluster in the background, and wait until it is ready."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from volplane.cli.cluster_directory import describe_choice
from volplane.cli.error import CommandError
from volplane.cluster import lifecycle
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import CannotStart
from volplane.host.processes import Process

READY_TIMEOUT = 120.0  # seconds


def start_cluster(layout: DataDirectory, arguments: Sequence[str], *, fresh: bool, timeout: float) -> None:
    """Start, and return when the cluster is ready; stop it on Ctrl-C. Raises CommandError."""
    process = lifecycle.start_in_background(layout, arguments)
    try:
        reason = lifecycle.wait_ready(layout, process, timeout or READY_TIMEOUT, _show_progress)
    except KeyboardInterrupt:
        click.echo("\nstopping", err=True)
        _stop(layout, process)
        raise
    if sys.stderr.isatty():
        click.echo("", err=True)
    if reason:
        _stop(layout, process)
        if fresh:
            layout.discard()
        raise CommandError(f"the cluster has not started: {reason.removeprefix('volplane: ')}")
    choice = describe_choice(layout)
    click.echo(f"ready: runs in the background; see volplane status{choice}, volplane stop{choice}")
    click.echo(f"  export KUBECONFIG={layout.kubeconfig}")


def prepare_directory(layout: DataDirectory) -> bool:
    """Create the data directory. Returns whether it is new. Raises CommandError if a cluster runs there."""
    if lifecycle.find_processes(layout).phase is not lifecycle.ClusterPhase.STOPPED:
        raise CommandError(f"the cluster in {layout.directory} runs already")
    try:
        fresh = layout.create()
    except CannotStart as error:
        raise CommandError(str(error)) from error
    layout.lock.touch(0o600)  # says that the directory is ours
    return fresh


def _stop(layout: DataDirectory, process: Process) -> None:
    try:
        lifecycle.stop_start(layout, process)
    except lifecycle.StillRunning as error:
        click.echo(f"volplane: {error}", err=True)


def _show_progress() -> None:
    if sys.stderr.isatty():
        click.echo(".", nl=False, err=True)
