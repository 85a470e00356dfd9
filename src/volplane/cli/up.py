"""`volplane up`: run a cluster in the foreground."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import click

from volplane.base.tasks import run_until
from volplane.cli.driver_options import add_driver_options, describe_drivers, resolve_user_drivers
from volplane.cli.error import CommandError
from volplane.cli.options import options
from volplane.cli.serve import FEWEST_FILES, require_root, serve
from volplane.cluster.errors import CannotStart
from volplane.cluster.multi_process import MultiProcessCluster
from volplane.cluster.single_process import Cluster, ClusterOptions, files_needed
from volplane.cluster.user_drivers import UserDrivers

LEVELS = click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False)

TAKE_OVER = 30.0  # seconds
PATIENCE = 15.0  # seconds that a start gets to complete after it is asked to stop


@click.command()
@options(ClusterOptions)
@add_driver_options
@click.option("--separate", is_flag=True, help="run each role as a separate process")
@click.option(
    "--log-level", type=LEVELS, default="INFO", metavar="info", help="debug, info, warning or error"
)
def command(settings: ClusterOptions, separate: bool, log_level: str, **given: Any) -> None:
    """Start a cluster and serve until stopped.

    Writes a kubeconfig into the data directory. Ctrl-C stops the pods, unmounts the volumes and releases the
    loop devices. A start on the same directory continues where the last one stopped.

    Your own driver replaces the built-in drivers unless --builtin-drivers is given. The next start on the
    same directory uses the same drivers, manifests and images unless you give others.
    """
    require_root()
    drivers, again = resolve_user_drivers(settings.data_dir, **given)
    if again:
        _say(f"options of the last start: {' '.join(drivers.options.command_words())}")
    files = FEWEST_FILES if separate else files_needed(settings.nodes)
    serve(lambda stop: _up(settings, drivers, separate, stop), level=log_level, files=files)


async def _up(settings: ClusterOptions, drivers: UserDrivers, separate: bool, stop: asyncio.Event) -> None:
    began = time.monotonic()
    me = asyncio.current_task()
    assert me is not None
    guard = asyncio.create_task(_end_start(stop, me), name="end of a start")
    try:
        async with (
            MultiProcessCluster(settings, drivers) if separate else Cluster(settings, drivers) as cluster
        ):
            guard.cancel()
            await _serve(cluster, stop, began)
    except CannotStart as error:
        raise CommandError(str(error)) from error
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        me.uncancel()
        raise CommandError(
            "stopped before the start was complete: mounts and containers of an earlier run are still there"
        ) from None
    finally:
        guard.cancel()
    _say("stopped")


async def _end_start(stop: asyncio.Event, start: asyncio.Task[None]) -> None:
    """After a stop request, let the start complete, so that everything can be taken down in order. Cancel a
    start that hangs, and exit if it does not end then.
    """
    await stop.wait()
    _say(
        f"stopping when the start is complete, or after {PATIENCE:.0f} s; press Ctrl-C again to exit at once"
    )
    await asyncio.sleep(PATIENCE)
    start.cancel()
    await asyncio.sleep(PATIENCE)
    _say("the start does not end: exiting without cleanup")
    os._exit(1)


async def _serve(cluster: Cluster | MultiProcessCluster, stop: asyncio.Event, started: float) -> None:
    for line in describe_drivers(cluster.learned):
        _say(line)
    await run_until(stop, cluster.wait_ready())
    if stop.is_set():
        await _take_over(cluster)
    else:
        _say(f"ready in {time.monotonic() - started:.2f} s: {len(cluster.members)} nodes, {cluster.url}")
        _say(f"  export KUBECONFIG={cluster.layout.kubeconfig}")
        _say(f'  or: eval "$(volplane env --data-dir {cluster.layout.directory})" for kubectl and aws')
        await run_until(stop, cluster.wait())
    _say("stopping: pods, volumes, disks")


async def _take_over(cluster: Cluster | MultiProcessCluster) -> None:
    """Stopped during the start: only a started node can unmount what an earlier run left."""
    directory = str(cluster.layout.directory)
    if not (await cluster.host.mounts()).under(directory):
        return
    _say(f"{directory} has mounts of an earlier run: starting the nodes to remove them")
    try:
        async with asyncio.timeout(TAKE_OVER):
            await cluster.wait_ready()
    except TimeoutError:
        _say("not ready in time: remaining mounts are left for the next start")


def _say(text: str) -> None:
    print(text, file=sys.stdout, flush=True)
