"""The snapshot controller as a separate role. Inside the controller manager it is one of many."""

from __future__ import annotations

import asyncio
import socket

from volplane.client.client import Client
from volplane.controllers.snapshot.controller import VolumeSnapshots
from volplane.controllers.snapshot.crd_wait import wait_for_crds
from volplane.controllers.snapshot.groups.controller import VolumeGroupSnapshots
from volplane.controllers.snapshot.settings import SnapshotControllerOptions
from volplane.controllers.snapshot.status_writer import COMPONENT
from volplane.loops.controller import Unsupported
from volplane.loops.events import EventRecorder
from volplane.loops.health import alive, health
from volplane.loops.leader import lead
from volplane.loops.wait_reports import WaitRegistry

__all__ = ["SnapshotControllerOptions", "run"]

LEASE = "snapshot-controller-leader"


async def run(
    client: Client,
    settings: SnapshotControllerOptions,
    *,
    identity: str = "",
    namespace: str = "kube-system",
    wait_registry: WaitRegistry | None = None,
) -> None:
    """Run until cancelled. Raises Unsupported if the kinds are not served in time."""
    try:
        async with asyncio.timeout(settings.retry_crd_interval_max):
            await wait_for_crds(client, groups=settings.groups)
    except TimeoutError:
        raise Unsupported("failed to find the CRDs of snapshots: apply them first") from None

    registry = wait_registry or WaitRegistry()

    async def work() -> None:
        async with EventRecorder(client, COMPONENT) as events, asyncio.TaskGroup() as tasks:
            tasks.create_task(registry.run(VolumeSnapshots(client, settings, events=events)))
            if settings.groups:
                tasks.create_task(registry.run(VolumeGroupSnapshots(client, settings, events=events)))

    checks = {"/healthz/leader-election": alive}
    async with health(settings.http_endpoint, checks, settings.metrics_path):
        me = identity or socket.gethostname()
        await lead(client, settings, LEASE, work, identity=me, namespace=namespace)
