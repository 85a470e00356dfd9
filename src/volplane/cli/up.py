"""`volplane up`: run a cluster in the foreground."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import click
from msgspec import structs

from volplane.base.tasks import run_until
from volplane.cli import cluster_directory
from volplane.cli.background import start_cluster
from volplane.cli.cluster_directory import NAME, choose_directory, require_known_version
from volplane.cli.driver_options import add_driver_options, describe_drivers, resolve_user_drivers
from volplane.cli.error import CommandError
from volplane.cli.options import DURATION, LEVELS, command_words, options
from volplane.cli.runtime_options import load_saved, resolve_runtime
from volplane.cli.serve import FEWEST_FILES, require_root, serve
from volplane.cli.stop_signals import end_start
from volplane.cluster.container_runtime import find_unused_runtime
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.errors import CannotStart
from volplane.cluster.leftovers import find_leftovers
from volplane.cluster.lifecycle import DEFAULT_DIRECTORY
from volplane.cluster.multi_process import MultiProcessCluster
from volplane.cluster.role_control import describe_down_nodes
from volplane.cluster.single_process import (
    Cluster,
    ClusterOptions,
    files_needed,
    options_to_save,
    runtime_endpoints,
)
from volplane.cluster.user_drivers import BadImageSyntax, UserDrivers, check_own_images

TAKE_OVER = 30.0  # seconds


@click.command()
@options(ClusterOptions)
@add_driver_options
@NAME
@click.option("--detach", is_flag=True, help="run in the background; return when the cluster is ready")
@click.option("--wait", type=DURATION, default=0.0, metavar="2m", help="time to become ready, else it stops")
@click.option("--update-kubeconfig", is_flag=True, help="make it the current context of ~/.kube/config")
@click.option("--separate", is_flag=True, help="run each role as a separate process")
@click.option(
    "--log-level", type=LEVELS, default="INFO", metavar="info", help="debug, info, warning or error"
)
def command(
    settings: ClusterOptions,
    name: str,
    detach: bool,
    wait: float,
    update_kubeconfig: bool,
    separate: bool,
    log_level: str,
    **given: Any,
) -> None:
    """Start a cluster and serve until stopped, or with --detach in the background.

    Writes a kubeconfig into the data directory. Ctrl-C stops the pods, unmounts the volumes and releases the
    loop devices; the exit code is 1 if something is left, with a list. A start on the same directory
    continues where the last one stopped.

    Your own driver replaces the built-in drivers unless --builtin-drivers is given. The next start on the
    same directory uses the same drivers, manifests and images unless you give others.

    A cluster in the background is restarted if its process ends. See `volplane status`, `logs`, `stop` and
    `start`.
    """
    given_directory = settings.data_dir if settings.data_dir != DEFAULT_DIRECTORY else ""
    settings = structs.replace(settings, data_dir=choose_directory(name, given_directory))
    require_root(DataDirectory(settings.data_dir))
    require_known_version(DataDirectory(settings.data_dir))
    drivers, again = resolve_user_drivers(settings.data_dir, **given)
    settings, runtime = resolve_runtime(settings, click.get_current_context())
    try:
        check_own_images(drivers.options.images, settings.container_runtime_endpoint)
    except BadImageSyntax as error:
        raise click.UsageError(str(error)) from error
    if words := [*(drivers.options.command_words() if again else ()), *runtime.command_words()]:
        _say(f"options of the last start: {' '.join(words)}")
    files = FEWEST_FILES if separate else files_needed(settings.nodes)
    if detach:
        _start_in_background(settings, drivers, separate, log_level, wait)
        if update_kubeconfig:
            cluster_directory.update_kubeconfig(DataDirectory(settings.data_dir))
        return
    tell = cluster_directory.update_kubeconfig if update_kubeconfig else None
    serve(lambda stop: _up(settings, drivers, separate, wait, tell, stop), level=log_level, files=files)


def _start_in_background(
    settings: ClusterOptions, drivers: UserDrivers, separate: bool, log_level: str, timeout: float
) -> None:
    layout = DataDirectory(settings.data_dir)
    saved = options_to_save(drivers, settings)

    def prepare() -> None:
        if saved != load_saved(layout):  # `up` finds them there; it has another working directory
            layout.write(layout.saved_options, saved)

    words = [*command_words(settings, hide=("data_dir",)), f"--log-level={log_level.lower()}"]
    if separate:
        words.append("--separate")
    start_cluster(layout, words, timeout=timeout, prepare=prepare)


async def _up(
    settings: ClusterOptions,
    drivers: UserDrivers,
    separate: bool,
    timeout: float,
    tell: Callable[[DataDirectory], None] | None,
    stop: asyncio.Event,
) -> None:
    began = time.monotonic()
    me = asyncio.current_task()
    assert me is not None
    canceller = asyncio.create_task(end_start(stop, me), name="end of a start")
    try:
        async with (
            MultiProcessCluster(settings, drivers) if separate else Cluster(settings, drivers) as cluster
        ):
            canceller.cancel()
            await _serve(cluster, timeout, tell, stop, began)
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
        canceller.cancel()
    members = runtime_endpoints(cluster.members, settings)
    if left := await find_leftovers(cluster.layout.directory, members):
        listed = "".join(f"\n  {line}" for line in left)
        raise CommandError(
            f"stopped, but not everything was unmounted and released; the next start on"
            f" {cluster.layout.directory} removes it:{listed}"
        )
    _say("stopped")


async def _serve(
    cluster: Cluster | MultiProcessCluster,
    timeout: float,
    tell: Callable[[DataDirectory], None] | None,
    stop: asyncio.Event,
    started: float,
) -> None:
    for line in describe_drivers(cluster.discovered):
        _say(line)
    down = [m.name for m in cluster.members if cluster.runs.is_crashed(m.name)]
    for line in describe_down_nodes(down, cluster.layout.directory):
        _say(line)
    try:
        async with asyncio.timeout(timeout or None):
            await run_until(stop, cluster.wait_ready())
    except TimeoutError:
        raise CannotStart(f"not ready within {timeout:g} seconds") from None
    if stop.is_set():
        await _take_over(cluster)
    else:
        _say(f"ready in {time.monotonic() - started:.2f} s: {len(cluster.members)} nodes, {cluster.url}")
        if tell is not None:
            tell(cluster.layout)
        _say(f"  export KUBECONFIG={cluster.layout.kubeconfig}")
        _say(f'  or: eval "$(volplane env --data-dir {cluster.layout.directory})" for kubectl and aws')
        if cluster.live_page is not None:
            _say(f"  live page, opens once: {cluster.live_page.issue_link()}")
        if not cluster.settings.container_runtime_endpoint and (found := find_unused_runtime()):
            _say(f"  a container runtime listens at {found}: --container-runtime-endpoint {found} uses it")
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
