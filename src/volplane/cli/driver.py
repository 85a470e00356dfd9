"""`volplane driver`: the EBS driver's services as a process of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import click

from volplane.cli.failure import Failure
from volplane.cli.node import account
from volplane.cli.running import need_root, serve, until
from volplane.drivers import ebs
from volplane.host import Host, NodePaths


@click.command()
@click.argument("mode", type=click.Choice(["controller", "node"]))
@click.option("--endpoint", required=True, help="the socket to serve, such as unix:///csi/csi.sock")
@click.option("--instance-id", default="", help="node: the instance this machine is")
@click.option("--zone", default="", help="node: the zone it is in")
@click.option(
    "--root-dir", default="", help="node: the directory that stands for /var/lib/kubelet; else itself"
)
def command(mode: str, endpoint: str, instance_id: str, zone: str, root_dir: str) -> None:
    """Serve the driver's controller or node service until stopped.

    The disk service and the keys come from AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
    """
    if mode == "node":
        need_root()
        if not instance_id or not zone:
            raise Failure("a node service needs --instance-id and --zone")
    socket = "/" + endpoint.removeprefix("unix:").lstrip("/")
    serve(lambda stop: _serve(mode, socket, ebs.Place(instance_id, zone), root_dir, stop))


async def _serve(mode: str, socket: str, place: ebs.Place, root_dir: str, stop: asyncio.Event) -> None:
    host = Host()
    paths = NodePaths(root_dir or "/var/lib/kubelet", identity=not root_dir)
    work: Awaitable[None]
    if mode == "controller":
        work = ebs.run_controller(account(), host, socket)
    else:
        work = ebs.run_node(place, host, paths, socket)
    try:
        await until(stop, work)
    finally:
        await host.close()
