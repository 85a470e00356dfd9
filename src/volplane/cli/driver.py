"""`volplane driver`: the services of one of our drivers as a process of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import click

from volplane.cli.failure import Failure
from volplane.cli.node import account
from volplane.cli.running import need_root, serve, until
from volplane.drivers import ebs, efs
from volplane.host import Host, NodePaths


@click.command()
@click.argument("mode", type=click.Choice(["controller", "node"]))
@click.option("--driver", type=click.Choice(["ebs", "efs"]), default="ebs", help="which one")
@click.option("--endpoint", required=True, help="the socket to serve, such as unix:///csi/csi.sock")
@click.option("--instance-id", default="", help="node: the instance this machine is")
@click.option("--zone", default="", help="node: the zone it is in")
@click.option(
    "--root-dir", default="", help="node: the directory that stands for /var/lib/kubelet; else itself"
)
@click.option("--shared-dir", default="/var/lib/volplane/efs", help="efs: where shared file systems are")
def command(
    mode: str, driver: str, endpoint: str, instance_id: str, zone: str, root_dir: str, shared_dir: str
) -> None:
    """Serve the driver's controller or node service until stopped.

    The disk service and the keys come from AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
    """
    if mode == "node" or driver == "efs":
        need_root()
    if mode == "node" and (not instance_id or (driver == "ebs" and not zone)):
        raise Failure("a node service needs --instance-id, and that of ebs --zone")
    socket = "/" + endpoint.removeprefix("unix:").lstrip("/")
    place = ebs.Place(instance_id, zone)
    serve(lambda stop: _serve(mode, socket, place, root_dir, shared_dir if driver == "efs" else "", stop))


async def _serve(
    mode: str, socket: str, place: ebs.Place, root_dir: str, shared_dir: str, stop: asyncio.Event
) -> None:
    host = Host()
    paths = NodePaths(root_dir or "/var/lib/kubelet", identity=not root_dir)
    work: Awaitable[None]
    match mode, bool(shared_dir):
        case "controller", False:
            work = ebs.run_controller(account(), host, socket)
        case "controller", True:
            work = efs.run_controller(shared_dir, host, socket)
        case _, False:
            work = ebs.run_node(place, host, paths, socket, account=account())
        case _:
            work = efs.run_node(shared_dir, place.instance, host, paths, socket)
    try:
        await until(stop, work)
    finally:
        await host.close()
