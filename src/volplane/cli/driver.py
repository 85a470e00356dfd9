"""`volplane driver`: the controller or node service of a built-in driver."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable

import click

from volplane.api import errors
from volplane.api.core import Node
from volplane.base.tasks import run_until
from volplane.cli.aws_account import aws_account
from volplane.cli.error import CommandError
from volplane.cli.serve import connect, require_root, serve
from volplane.drivers import ebs, efs
from volplane.drivers.ebs import metadata
from volplane.host import Host, NodePaths


@click.command()
@click.argument("mode", type=click.Choice(["controller", "node"]))
@click.option("--driver", type=click.Choice(["ebs", "efs"]), default="ebs", help="driver to serve")
@click.option(
    "--endpoint", required=True, metavar="SOCKET", help="socket to serve, such as unix:///csi/csi.sock"
)
@click.option("--instance-id", default="", metavar="ID", help="node: EC2 instance; default: detected")
@click.option("--zone", default="", metavar="NAME", help="node: availability zone; default: detected")
@click.option(
    "--volume-attach-limit",
    default=ebs.MAX_VOLUMES,
    metavar=str(ebs.MAX_VOLUMES),
    help="node: volumes that can be attached",
)
@click.option(
    "--root-dir",
    default="",
    metavar="DIR",
    help="node: directory to use as /var/lib/kubelet; default: /var/lib/kubelet",
)
@click.option(
    "--target-root",
    multiple=True,
    metavar="DIR",
    help="node: additional directory where volumes may be staged and published, for tests",
)
@click.option(
    "--shared-dir",
    default="/var/lib/volplane/efs",
    metavar="/var/lib/volplane/efs",
    help="efs: directory of shared file systems",
)
@click.option("--kubeconfig", default="", metavar="FILE", help="node: API server, to read zone and instance")
def command(
    mode: str,
    driver: str,
    endpoint: str,
    instance_id: str,
    zone: str,
    volume_attach_limit: int,
    root_dir: str,
    target_root: tuple[str, ...],
    shared_dir: str,
    kubeconfig: str,
) -> None:
    """Serve the driver's controller or node service until stopped.

    The disk service and the keys come from AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.

    A node service of ebs takes instance and zone from its flags, else from the instance metadata, else from
    the Node named by CSI_NODE_NAME. A node service of efs takes its node ID from --instance-id or
    CSI_NODE_NAME.
    """
    if mode == "node" or driver == "efs":
        require_root(loops=False)
    paths = NodePaths(root_dir or "/var/lib/kubelet", identity=not root_dir, targets=target_root)
    socket = "/" + endpoint.removeprefix("unix:").lstrip("/")
    shared = shared_dir if driver == "efs" else ""

    async def work(stop: asyncio.Event) -> None:
        place = ebs.EbsNodeConfig(
            instance_id or os.environ.get("CSI_NODE_NAME", ""), zone, volume_attach_limit
        )
        if (mode, driver) == ("node", "ebs") and not (instance_id and zone):
            where = await _find(kubeconfig)
            place = ebs.EbsNodeConfig(instance_id or where.instance, zone or where.zone, volume_attach_limit)
        elif mode == "node" and not place.instance:
            raise CommandError("a node service needs --instance-id, or CSI_NODE_NAME")
        await _serve(mode, socket, place, paths, shared, stop)

    serve(work)


async def _find(kubeconfig: str) -> metadata.InstanceLocation:
    """The instance and zone of this node. Raises CommandError."""
    location = await metadata.from_instance(os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", ""))
    name = os.environ.get("CSI_NODE_NAME", "")
    if location is not None:
        return location
    if not name:
        raise CommandError(
            "a node service of ebs needs --instance-id and --zone: there is no instance metadata service, and"
            " CSI_NODE_NAME is not set"
        )
    client = connect(kubeconfig, "ebs-plugin")
    try:
        location = metadata.from_node(await client.get(Node, name))
    except errors.APIError as error:
        raise CommandError(f"Node {name} cannot be read: {error}") from error
    finally:
        await client.close()
        await client.transport.close()
    if location is None:
        raise CommandError(f"Node {name} has no AWS providerID and zone: give --instance-id and --zone")
    return location


async def _serve(
    mode: str, socket: str, place: ebs.EbsNodeConfig, paths: NodePaths, shared_dir: str, stop: asyncio.Event
) -> None:
    host = Host()
    work: Awaitable[None]
    match mode, bool(shared_dir):
        case "controller", False:
            work = ebs.run_controller(aws_account(), host, socket)
        case "controller", True:
            work = efs.run_controller(shared_dir, host, socket)
        case _, False:
            work = ebs.run_node(place, host, paths, socket, account=aws_account())
        case _:
            work = efs.run_node(shared_dir, place.instance, host, paths, socket)
    try:
        await run_until(stop, work)
    finally:
        await host.close()
