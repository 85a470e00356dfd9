"""`volplane up`: a cluster in the foreground."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import click

from volplane.cli.bringing import bring, brought_to, described
from volplane.cli.failure import Failure
from volplane.cli.options import options
from volplane.cli.running import FEWEST_FILES, need_root, serve, until
from volplane.cluster.brought import Brought
from volplane.cluster.errors import CannotStart
from volplane.cluster.separate import Separate
from volplane.cluster.whole import Cluster, Settings, files_needed

LEVELS = click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False)

TAKE_OVER = 30.0  # seconds


@click.command()
@options(Settings)
@bring
@click.option("--separate", is_flag=True, help="run each role as a process of its own")
@click.option(
    "--log-level", type=LEVELS, default="INFO", metavar="info", help="debug, info, warning or error"
)
def command(settings: Settings, separate: bool, log_level: str, **given: Any) -> None:
    """Start a cluster and serve until stopped.

    Writes a kubeconfig into the data directory. Ctrl-C stops the pods, unmounts the volumes and releases the
    loop devices. A start on the same directory continues where the last one stopped.

    A driver of your own replaces the built-in drivers unless --builtin-drivers is given. The next start on
    the same directory uses the same drivers, manifests and images unless it is given others.
    """
    need_root()
    brought, again = brought_to(settings.data_dir, **given)
    if again:
        _say(f"options of the last start: {' '.join(brought.said.words())}")
    files = FEWEST_FILES if separate else files_needed(settings.nodes)
    serve(lambda stop: _up(settings, brought, separate, stop), level=log_level, files=files)


async def _up(settings: Settings, brought: Brought, separate: bool, stop: asyncio.Event) -> None:
    started = time.monotonic()
    try:
        async with Separate(settings, brought) if separate else Cluster(settings, brought) as cluster:
            await _serve(cluster, stop, started)
    except CannotStart as error:
        raise Failure(str(error)) from error
    _say("stopped")


async def _serve(cluster: Cluster | Separate, stop: asyncio.Event, started: float) -> None:
    for line in described(cluster.learned):
        _say(line)
    await until(stop, cluster.ready())
    if stop.is_set():
        await _take_over(cluster)
    else:
        _say(f"ready in {time.monotonic() - started:.2f} s: {len(cluster.members)} nodes, {cluster.url}")
        _say(f"  export KUBECONFIG={cluster.layout.kubeconfig}")
        _say(f'  or: eval "$(volplane env --data-dir {cluster.layout.directory})" for kubectl and aws')
        await until(stop, cluster.wait())
    _say("stopping: pods, volumes, disks")


async def _take_over(cluster: Cluster | Separate) -> None:
    """Stopped while it starts: what an earlier run left mounted only a started node can take down."""
    directory = str(cluster.layout.directory)
    if not (await cluster.host.mounts()).under(directory):
        return
    _say(f"{directory} has mounts of an earlier run: taking them over before they can be removed")
    try:
        async with asyncio.timeout(TAKE_OVER):
            await cluster.ready()
    except TimeoutError:
        _say("not ready in time: what it has not taken over stays for the next start")


def _say(text: str) -> None:
    print(text, file=sys.stdout, flush=True)
