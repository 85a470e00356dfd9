"""A node that loses power: its containers end and its mounts vanish, as with a machine's memory."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from volplane.host import Host
from volplane.node.containers import records


async def lose_power(root: Path, host: Host) -> None:
    """The node's own process has ended before."""
    await host.call(kill_containers, str(root / "containers"))
    table = await host.mounts()
    for entry in reversed(list(table.under(str(root)))):
        await host.unmount(entry.target, detach=True)


def kill_containers(directory: str, name: str = "") -> int:
    """kill -9 of all containers, or of those with a name; how many there were."""
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
