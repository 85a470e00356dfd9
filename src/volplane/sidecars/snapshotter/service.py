"""csi-snapshotter: takes the snapshots of VolumeSnapshotContents. Run it with `run(client, settings)`."""

from __future__ import annotations

import asyncio
import os

from volplane.api.names import sanitize_driver
from volplane.client.client import Client
from volplane.csi import v1
from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.client import Caller
from volplane.loops.controller import Unsupported
from volplane.loops.events import EventRecorder
from volplane.loops.wait_reports import WaitRegistry
from volplane.sidecars.base import DriverClient, run_sidecar
from volplane.sidecars.snapshotter.content_controller import COMPONENT
from volplane.sidecars.snapshotter.controller import SnapshotContentController
from volplane.sidecars.snapshotter.group_controller import GroupSnapshotContentController
from volplane.sidecars.snapshotter.settings import SnapshotterOptions

__all__ = ["SnapshotterOptions", "run"]


async def run(
    client: Client,
    settings: SnapshotterOptions,
    *,
    caller: Caller | None = None,
    interceptor: CallInterceptor | None = None,
    identity: str = "",
    namespace: str = "default",
    node: str = "",
    wait_registry: WaitRegistry | None = None,
) -> None:
    """Run until cancelled. `node` is for --node-deployment; $NODE_NAME by default.

    Raises Unsupported if the driver cannot take snapshots.
    """
    node_name = (node or os.environ.get("NODE_NAME", "")) if settings.node_deployment else None
    if node_name == "":
        raise Unsupported("The NODE_NAME environment variable must be set when using --node-deployment.")

    registry = wait_registry or WaitRegistry()

    async def work(driver: DriverClient) -> None:
        if "CREATE_DELETE_SNAPSHOT" not in driver.controller:
            raise Unsupported("CSI driver does not support ControllerCreateSnapshot")
        groups = settings.has_groups and await _supports_groups(driver, settings)
        async with (
            EventRecorder(client, f"csi-snapshotter {driver.name}") as events,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(
                registry.run(
                    SnapshotContentController(client, driver, settings, events=events, node=node_name)
                )
            )
            if groups:
                tasks.create_task(
                    registry.run(GroupSnapshotContentController(client, driver, settings, events=events))
                )

    await run_sidecar(
        client,
        settings,
        COMPONENT,
        lambda driver: f"external-snapshotter-leader-{sanitize_driver(driver.name)}",
        work,
        caller=caller,
        interceptor=interceptor,
        identity=identity,
        namespace=namespace,
    )


async def _supports_groups(driver: DriverClient, settings: SnapshotterOptions) -> bool:
    if "GROUP_CONTROLLER_SERVICE" not in driver.plugin:
        return False
    answer = await driver.call(
        "GroupControllerGetCapabilities", v1.GroupControllerGetCapabilitiesRequest(), timeout=settings.timeout
    )
    kinds = v1.GroupControllerServiceCapability.RPC
    wanted = kinds.CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
    return any(c.HasField("rpc") and c.rpc.type == wanted for c in answer.capabilities)
