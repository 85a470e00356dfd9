"""The EFS-like driver: shared directories, on many nodes at once, without attach and without stage.

A file system is a directory of this machine; a volume is an access point in it, with an owner and a size. The
same parameters and volume handles as AWS's driver for EFS, so that its manifests work.
"""

from __future__ import annotations

from volplane import sdk
from volplane.drivers.efs.driver import NAME, Controller, Node, Whole
from volplane.drivers.efs.shares import Shares
from volplane.host import Host, NodePaths

__all__ = ["NAME", "Controller", "Node", "Shares", "Whole", "run_controller", "run_node"]


async def run_controller(directory: str, host: Host, socket: str) -> None:
    """Serve the controller on `socket` until cancelled."""
    await sdk.serve(Controller(Shares(directory), host), socket)


async def run_node(
    directory: str, node: str, host: Host, paths: NodePaths, socket: str, *, latency: str = ""
) -> None:
    """Serve the node on `socket` (a real path) until cancelled."""
    await sdk.serve(Node(Shares(directory), node, host, paths, latency=latency), socket)
