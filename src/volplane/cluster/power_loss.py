"""Simulate a power loss of a node: its containers are killed and its mounts removed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from volplane.host import Host
from volplane.node.containers import records


async def lose_power(root: Path, host: Host) -> None:
    """Kill the containers and remove the mounts. The node's process must have ended before."""
    await host.call(kill_containers, str(root / "containers"))
    table = await host.mounts()
    for entry in reversed(list(table.under(str(root)))):
        await host.unmount(entry.target, detach=True)


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
