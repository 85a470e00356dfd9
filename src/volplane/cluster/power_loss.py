"""Simulate a power loss of a node: its containers are killed and its mounts removed."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from volplane.cluster.data_directory import ClusterMember, DataDirectory
from volplane.host import Host, network
from volplane.node.containers import records
from volplane.node.containers.cri.removal import remove_node


async def lose_power(root: Path, host: Host, runtime: str = "") -> None:
    """Kill the containers and remove the mounts. The node's process must have ended before.

    `runtime`: the endpoint of the node's container runtime.
    """
    await host.call(kill_containers, str(root / "containers"))
    if runtime:
        await remove_node(runtime, str(root))
    table = await host.mounts()
    for entry in reversed(list(table.under(str(root)))):
        await host.unmount(entry.target, detach=True)


async def discard(layout: DataDirectory, members: Mapping[ClusterMember, str]) -> None:
    """Remove a cluster whose first start failed, with the containers that its nodes had started.

    `members`: the nodes with the endpoints of their container runtimes.
    """
    host = Host()
    try:
        for member, runtime in members.items():
            await lose_power(member.root, host, runtime)
        await host.call(_remove_bridge, layout.bridge)
        await host.call(layout.discard)
    finally:
        await host.close()


def _remove_bridge(name: str) -> None:
    if os.path.exists(f"/sys/class/net/{name}"):  # else there may be no right to ask the kernel
        network.remove_bridge(name)


def kill_containers(directory: str, name: str = "") -> int:
    """Kill all containers, or those of a name, with SIGKILL. Returns how many ran."""
    killed = 0
    for record in records.load_all(directory):
        started = record.started
        if name and started.spec.name != name:
            continue
        killed += record.is_alive
        for pid, lives in ((started.pid, record.is_alive), (started.shim, record.is_shim_alive and not name)):
            if lives:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    return killed
