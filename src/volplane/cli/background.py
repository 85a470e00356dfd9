"""Start a cluster in the background, and wait until it is ready."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from volplane.cli.cluster_directory import describe_choice
from volplane.cli.error import CommandError
from volplane.cluster import lifecycle
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import CannotStart
from volplane.host.processes import Process

READY_TIMEOUT = 120.0  # seconds


def start_cluster(
    layout: DataDirectory,
    arguments: Sequence[str],
    *,
    timeout: float,
    prepare: Callable[[], None] = lambda: None,
) -> None:
    """Start, and return when the cluster is ready; stop it on Ctrl-C. `prepare` is called when the directory
    exists. Raises CommandError.
    """
    process, fresh = None, False
    try:
        with _hold_interrupt():
            fresh = _create_directory(layout)
            prepare()
            process = lifecycle.start_in_background(layout, arguments)
        reason = lifecycle.wait_ready(layout, process, timeout or READY_TIMEOUT, _show_progress)
    except KeyboardInterrupt:
        if process is not None:
            _end_interrupted_start(layout, process, fresh=fresh)
        raise
    if sys.stderr.isatty():
        click.echo("", err=True)
    if reason:
        if _stop(layout, process) and fresh:
            layout.discard()
        raise CommandError(f"the cluster has not started: {reason.removeprefix('volplane: ')}")
    choice = describe_choice(layout)
    click.echo(f"ready: runs in the background; see volplane status{choice}, volplane stop{choice}")
    click.echo(f"  export KUBECONFIG={layout.kubeconfig}")


@contextmanager
def _hold_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block: what is started in it is known then."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, in the background of a shell
        yield
        return
    interrupts = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt


def _create_directory(layout: DataDirectory) -> bool:
    """Create the data directory. Returns whether it is new. Raises CommandError if a cluster runs there."""
    if lifecycle.find_processes(layout).phase is not lifecycle.ClusterPhase.STOPPED:
        raise CommandError(f"the cluster in {layout.directory} runs already")
    try:
        fresh = layout.create()
    except CannotStart as error:
        raise CommandError(str(error)) from error
    layout.lock.touch(0o600)  # says that the directory is ours
    return fresh


def _end_interrupted_start(layout: DataDirectory, process: Process, *, fresh: bool) -> None:
    """After Ctrl-C: leave what was there before. A second Ctrl-C does not wait for it."""
    click.echo("\nstopping; press Ctrl-C again not to wait for it", err=True)
    try:
        has_stopped = _stop(layout, process)
    except KeyboardInterrupt:
        click.echo(f"\nit stops in the background; see volplane status{describe_choice(layout)}", err=True)
        raise
    if has_stopped and fresh:
        layout.discard()
    if has_stopped:
        click.echo(f"stopped before it was ready{', and removed' if fresh else ''}", err=True)


def _stop(layout: DataDirectory, process: Process) -> bool:
    """Returns whether it has stopped in time."""
    try:
        lifecycle.stop_start(layout, process, report=_show_progress)
    except lifecycle.StillRunning as error:
        click.echo(f"volplane: {error}", err=True)
        return False
    return True


def _show_progress() -> None:
    if sys.stderr.isatty():
        click.echo(".", nl=False, err=True)
