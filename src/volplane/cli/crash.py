"""`volplane crash`: simulate a power loss of a node, or kill the process of a role."""

from __future__ import annotations

import asyncio
import os
import signal

import click

from volplane.cli.error import CommandError
from volplane.cluster import power_loss
from volplane.cluster.data_directory import DataDirectory
from volplane.cluster.multi_process import RoleFiles
from volplane.host import Host


@click.command()
@click.argument("role")
@click.option("--data-dir", default="~/.volplane", metavar="~/.volplane", help="directory of the cluster")
@click.option("--revive", is_flag=True, help="start a crashed node again")
def command(role: str, data_dir: str, revive: bool) -> None:
    """Kill ROLE (node/worker-2, apiserver, cloud, scheduler, controller-manager) with SIGKILL.

    A node also loses its containers and mounts, like a machine that loses power, and stays down until
    --revive. Other roles are restarted at once. Needs a cluster started with `volplane up --separate`.
    """
    layout = DataDirectory(data_dir)
    runs = RoleFiles(layout.run)
    keeper = runs.read("up")
    if keeper is None or not keeper.is_alive:
        raise CommandError(
            f"no cluster with separate processes runs in {layout.directory}: volplane up --separate"
        )
    if revive:
        runs.crash_marker(role).unlink(missing_ok=True)
        os.kill(keeper.pid, signal.SIGHUP)
        return
    found = runs.read(role)
    if found is None or not found.is_alive:
        known = sorted(p.stem.replace("node-", "node/") for p in layout.run.glob("*.pid") if p.stem != "up")
        raise CommandError(f"{role} does not run; running roles: {', '.join(known)}")
    kind, _, name = role.partition("/")
    if kind == "node":
        runs.crash_marker(role).touch()
    os.kill(found.pid, signal.SIGKILL)
    if kind == "node":
        asyncio.run(_lose_power(layout, int(name.rpartition("-")[2])))
    click.echo(f"{role} is down")


async def _lose_power(layout: DataDirectory, index: int) -> None:
    host = Host()
    try:
        await power_loss.lose_power(layout.member(index, 1).root, host)
    finally:
        await host.close()
