"""Kill a driver's containers (SIGKILL): all of them, or the one that serves a socket."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from volplane.node.containers import records
from volplane.node.containers.cri import labels, v1
from volplane.node.containers.cri.client import CriClient
from volplane.node.containers.records import ProcessContainerRecord

NAME = "driver"  # the container's name


def kill_driver(roots: Iterable[Path], socket: str = "") -> int:
    """Kill the containers below the nodes' directories; returns their number."""
    mine = [root for root in roots if not socket or socket.startswith(f"{root}/")]
    known = [record for root in mine for record in records.load_all(str(root / "containers"))]
    drivers = [record for record in known if record.started.spec.name == NAME]
    return sum(_kill(r) for r in drivers if _serves(r.started.spec.pod_uid, r.started.spec.pod_name, socket))


async def kill_in_runtime(endpoint: str, roots: Iterable[Path], socket: str = "") -> int:
    """The same for nodes with a container runtime. Raises CriError."""
    cri, killed = CriClient(endpoint), 0
    try:
        for root in roots:
            if socket and not socket.startswith(f"{root}/"):
                continue
            for container in await cri.list_containers(labels.node_labels(str(root))):
                own = container.labels
                is_driver = container.state == v1.CONTAINER_RUNNING and own[labels.CONTAINER_NAME] == NAME
                if is_driver and _serves(own[labels.POD_UID], own[labels.POD_NAME], socket):
                    await cri.stop_container(container.id, 0)
                    killed += 1
    finally:
        await cri.close()
    return killed


def _serves(uid: str, pod: str, socket: str) -> bool:
    """A controller's socket is in a volume of its pod, a node plugin's in the node's plugin directory."""
    if not socket:
        return True
    if "/pods/" in socket:
        return f"/pods/{uid}/" in socket
    return not pod.startswith("controller-")


def _kill(record: ProcessContainerRecord) -> bool:
    if record.ending is not None or not record.is_alive:
        return False
    with suppress(ProcessLookupError):
        os.kill(record.started.pid, signal.SIGKILL)
    return True
