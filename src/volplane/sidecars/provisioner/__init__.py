"""csi-provisioner: claims become volumes, released volumes go. Run it with `run(client, settings)`."""

from __future__ import annotations

import asyncio
import random
import socket

from volplane.api.names import sanitize_driver
from volplane.base import clock
from volplane.client.client import Client
from volplane.csi.client import Caller
from volplane.loops.events import Recorder
from volplane.sidecars import alive, connected, health, lead
from volplane.sidecars.provisioner.controller import COMPONENT, Claims, Volumes
from volplane.sidecars.provisioner.settings import Settings

__all__ = ["Settings", "run"]


async def run(
    client: Client,
    settings: Settings,
    *,
    caller: Caller | None = None,
    identity: str = "",
    namespace: str = "default",
) -> None:
    """Until cancelled. `identity` (the pod's name) and `namespace` are for leader election."""
    for flag in ("node_deployment", "enable_capacity"):
        if getattr(settings, flag):
            raise NotImplementedError(f"--{flag.replace('_', '-')} is not supported yet")
    me = identity or socket.gethostname()
    endpoint = settings.http_endpoint or settings.metrics_address
    async with (
        health(endpoint, {"/healthz/leader-election": alive}, settings.metrics_path),
        connected(settings.csi_address, COMPONENT, caller) as driver,
    ):

        async def work() -> None:
            millis = int(clock.wall().timestamp() * 1000)
            stamp = f"{millis}-{random.randrange(10_000)}-{driver.name}"
            async with Recorder(client, f"{driver.name}_{me}") as events, asyncio.TaskGroup() as group:
                group.create_task(Claims(client, driver, settings, events=events, identity=stamp).run())
                group.create_task(Volumes(client, driver, settings, events=events).run())

        await lead(client, settings, sanitize_driver(driver.name), work, identity=me, namespace=namespace)
