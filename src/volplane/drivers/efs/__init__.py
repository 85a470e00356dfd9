"""The EFS driver: shared directories on many nodes at once, without attach and stage.

A file system is a directory of this machine; a volume is an access point in it, with an owner and a size.
Parameters and volume handles are those of AWS's EFS driver, so its manifests work.
"""

from __future__ import annotations

from volplane import sdk
from volplane.drivers.efs.access_points import AccessPointStore
from volplane.drivers.efs.driver import NAME, EfsAllInOneDriver, EfsController, EfsNode
from volplane.host import Host, NodePaths

__all__ = [
    "NAME",
    "AccessPointStore",
    "EfsAllInOneDriver",
    "EfsController",
    "EfsNode",
    "run_controller",
    "run_node",
]


async def run_controller(directory: str, host: Host, socket: str) -> None:
    """Serve the controller on `socket` until cancelled."""
    await sdk.serve(EfsController(AccessPointStore(directory), host), socket)


async def run_node(
    directory: str, node: str, host: Host, paths: NodePaths, socket: str, *, latency: str = ""
) -> None:
    """Serve the node on `socket` (a real path) until cancelled."""
    await sdk.serve(EfsNode(AccessPointStore(directory), node, host, paths, latency=latency), socket)
