"""`volplane demo`: run a claim and a pod end to end, print each step, verify the data, remove everything."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console

from volplane.api.core import Pod
from volplane.base.tasks import run_until
from volplane.base.user_namespace import is_user_namespace
from volplane.cli.demo_script import NAMESPACE, DemoScript
from volplane.cli.demo_table import DemoTable
from volplane.cli.error import CommandError
from volplane.cli.explain import explain_target
from volplane.cli.options import LEVELS
from volplane.cli.serve import require_root, serve
from volplane.cli.stop_signals import end_start
from volplane.client import kubeconfig
from volplane.client.client import Client
from volplane.client.snapshot_cache import SnapshotCaches
from volplane.client.transport import Transport
from volplane.cluster.single_process import Cluster, ClusterOptions
from volplane.explain.resolve import ExplainTarget
from volplane.explain.result import ExplainResult

DISKS, DIRECTORIES = "gp3", "efs"  # StorageClasses
WIDTH = 110  # of the table, also without a terminal


@click.command()
@click.option("--keep", is_flag=True, help="keep the data directory")
@click.option(
    "--log-level", type=LEVELS, default="ERROR", metavar="error", help="debug, info, warning or error"
)
def command(keep: bool, log_level: str) -> None:
    """Show every step of a volume on this machine, in a few seconds.

    Starts a cluster of two nodes in a temporary directory, creates a claim and a pod through the API, prints
    each step with the component that took it, moves the pod to the other node, reads the data back, and
    removes everything, also after Ctrl-C.
    """
    require_root()
    directory = Path(tempfile.mkdtemp(prefix="volplane-demo-"))
    directory.rmdir()  # the cluster creates it, and removes it if its start does not complete
    try:
        serve(lambda stop: _demo(directory, stop), level=log_level)
    finally:
        if keep:
            click.echo(f"the data directory is kept; continue with: volplane up --data-dir {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


async def _demo(directory: Path, stop: asyncio.Event) -> None:
    console = Console(highlight=False, width=max(Console().width, WIDTH))
    began = time.monotonic()
    console.print(
        "Starting a cluster: API server, store, controllers, scheduler, two nodes, disk service, driver …"
    )
    if is_user_namespace():
        console.print(
            "  Without root there are no loop devices: the volume is a shared directory (StorageClass efs).\n"
            "  With a disk: sudo volplane demo"
        )
    me = asyncio.current_task()
    assert me is not None
    canceller = asyncio.create_task(end_start(stop, me, may_exit=False), name="end of a start")
    try:
        async with Cluster(ClusterOptions(data_dir=str(directory), nodes=2, ui="off")) as cluster:
            canceller.cancel()
            await run_until(stop, _show_steps(console, cluster, directory, began))
            if stop.is_set():
                console.print("\nStopping: pods, volumes, disks")
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        me.uncancel()  # the start did not complete in time
    finally:
        canceller.cancel()
    left = await asyncio.to_thread(_find_leftovers, directory)
    state = "Stopped before its end." if stop.is_set() else "Stopped."
    console.print(f"{state} {left or 'No mount, loop device, network or process of the demo is left.'}")
    if left:
        raise SystemExit(1)
    if stop.is_set():
        raise click.exceptions.Abort


async def _show_steps(console: Console, cluster: Cluster, directory: Path, began: float) -> None:
    await cluster.wait_ready()
    console.print(f"  ready after {time.monotonic() - began:.2f} s at {cluster.url}\n")
    transport = kubeconfig.load(cluster.layout.kubeconfig, agent="volplane-demo")
    client = Client(transport, component="volplane-demo")
    try:
        script = DemoScript(
            client,
            directory,
            lambda pod: _explain(cluster, transport, pod),
            storage_class=DIRECTORIES if is_user_namespace() else DISKS,
        )
        await _run_script(console, script, DemoTable(cluster.trace))
    finally:
        await client.close()
        await transport.close()


async def _explain(cluster: Cluster, transport: Transport, pod: str) -> ExplainResult:
    """What `volplane explain pod/NAME` says about the pod."""
    caches = SnapshotCaches(transport, namespace=NAMESPACE)
    try:
        target = ExplainTarget(Pod, pod, NAMESPACE)
        return await explain_target(caches, target, cluster.layout.run)
    finally:
        await caches.close()


async def _run_script(console: Console, script: DemoScript, steps: DemoTable) -> None:
    await script.write()
    console.print(f"A claim of 1Gi and a pod: [bold]{script.line}[/bold] written on {script.first_node}\n")
    console.print(steps.table(script))
    console.print()
    await script.move()
    console.print(f"[bold]The proof[/bold]  written on {script.first_node}: {script.line}")
    console.print(f"           read on {script.second_node}:    {script.read}")
    attached = ", detach and attach included" if script.storage_class == DISKS else ""
    console.print(f"           the pod moved in {script.moved_in * 1000:.0f} ms{attached}\n")
    if script.read != script.line:
        raise CommandError("the data is not what was written")
    for what in await script.clean_up():
        console.print(f"  removed: {what}")
    console.print()


def _find_leftovers(directory: Path) -> str:
    """What the demo has left on the machine; "" if nothing."""
    place = str(directory)
    mounts = [
        line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if place in line
    ]
    bound = Path("/sys/block").glob("loop*/loop/backing_file")
    loops = [backing.parent.parent.name for backing in bound if place in backing.read_text()]
    networks = [
        alias.parent.name for alias in Path("/sys/class/net").glob("*/ifalias") if place in _text(alias)
    ]
    found = {"mounts": mounts, "loops": loops, "networks": networks}
    parts = [f"{what} left: {', '.join(names)}" for what, names in found.items() if names]
    return "; ".join(parts)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # removed meanwhile
        return ""
