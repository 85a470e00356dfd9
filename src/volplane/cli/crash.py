"""`volplane crash`: what happens when a machine loses power, or a process is killed."""

from __future__ import annotations

import asyncio
import os
import signal

import click

from volplane.cli.failure import Failure
from volplane.cluster import power
from volplane.cluster.layout import Layout
from volplane.cluster.separate import Runs
from volplane.host import Host


@click.command()
@click.argument("role")
@click.option("--data-dir", default="~/.volplane", metavar="~/.volplane", help="directory of the cluster")
@click.option("--revive", is_flag=True, help="start a crashed node again")
def command(role: str, data_dir: str, revive: bool) -> None:
    """Kill ROLE (node/worker-2, apiserver, cloud, scheduler, controller-manager) with SIGKILL.

    A node goes with its containers and mounts, as a machine does that loses power, and stays down until
    --revive. Other roles are started again at once. Needs a cluster of `volplane up --separate`.
    """
    layout = Layout(data_dir)
    runs = Runs(layout.run)
    keeper = runs.read("up")
    if keeper is None or not keeper.lives:
        raise Failure(f"no cluster of separate processes runs in {layout.directory}: volplane up --separate")
    if revive:
        runs.crashed(role).unlink(missing_ok=True)
        os.kill(keeper.pid, signal.SIGHUP)
        return
    found = runs.read(role)
    if found is None or not found.lives:
        known = sorted(p.stem.replace("node-", "node/") for p in layout.run.glob("*.pid") if p.stem != "up")
        raise Failure(f"{role} does not run; there are: {', '.join(known)}")
    kind, _, name = role.partition("/")
    if kind == "node":
        runs.crashed(role).touch()
    os.kill(found.pid, signal.SIGKILL)
    if kind == "node":
        asyncio.run(_lose_power(layout, int(name.rpartition("-")[2])))
    click.echo(f"{role} is down")


async def _lose_power(layout: Layout, index: int) -> None:
    host = Host()
    try:
        await power.lose(layout.member(index, 1).root, host)
    finally:
        await host.close()
