"""Kill a driver's containers (SIGKILL): all of them, or the one that serves a socket."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from volplane.node.containers import records
from volplane.node.containers.base import ContainerSpec
from volplane.node.containers.records import ProcessContainerRecord

NAME = "driver"  # the container's name


def kill_driver(roots: Iterable[Path], socket: str = "") -> int:
    """Kill the containers below the nodes' directories; returns their number."""
    mine = [root for root in roots if not socket or socket.startswith(f"{root}/")]
    known = [record for root in mine for record in records.load_all(str(root / "containers"))]
    return sum(_kill(r) for r in known if r.started.spec.name == NAME and _serves(r.started.spec, socket))


def _serves(spec: ContainerSpec, socket: str) -> bool:
    """A controller's socket is in a volume of its pod, a node plugin's in the node's plugin directory."""
    if not socket:
        return True
    if "/pods/" in socket:
        return f"/pods/{spec.pod_uid}/" in socket
    return not spec.pod_name.startswith("controller-")


def _kill(record: ProcessContainerRecord) -> bool:
    if record.ending is not None or not record.is_alive:
        return False
    with suppress(ProcessLookupError):
        os.kill(record.started.pid, signal.SIGKILL)
    return True
