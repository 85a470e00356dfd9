"""csi-attacher: attaches the volumes of VolumeAttachments. Run it with `run(client, settings)`."""

from __future__ import annotations

import asyncio

from volplane.api.names import sanitize_driver
from volplane.client.client import Client
from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.client import Caller
from volplane.loops.wait_reports import WaitRegistry
from volplane.sidecars.attacher.controller import (
    COMPONENT,
    VolumeAttacher,
    VolumeFinalizerRemover,
    build_driver_info,
)
from volplane.sidecars.attacher.settings import AttacherOptions
from volplane.sidecars.base import DriverClient, run_sidecar

__all__ = ["AttacherOptions", "run"]


async def run(
    client: Client,
    settings: AttacherOptions,
    *,
    caller: Caller | None = None,
    interceptor: CallInterceptor | None = None,
    identity: str = "",
    namespace: str = "default",
    wait_registry: WaitRegistry | None = None,
) -> None:
    """Run until cancelled. `identity` (the pod's name) and `namespace` are for leader election."""

    registry = wait_registry or WaitRegistry()

    async def work(driver: DriverClient) -> None:
        attachments = VolumeAttacher(client, driver, settings)
        async with asyncio.TaskGroup() as group:
            group.create_task(registry.run(attachments))
            if build_driver_info(driver).attaches:
                group.create_task(registry.run(VolumeFinalizerRemover(client, driver, settings)))
            if {"LIST_VOLUMES", "LIST_VOLUMES_PUBLISHED_NODES"} <= driver.controller:
                group.create_task(attachments.verify_attachments())

    await run_sidecar(
        client,
        settings,
        COMPONENT,
        lambda driver: f"external-attacher-leader-{sanitize_driver(driver.name)}",
        work,
        caller=caller,
        interceptor=interceptor,
        identity=identity,
        namespace=namespace,
    )
