"""csi-snapshotter: VolumeSnapshotContents become snapshots. Run it with `run(client, settings)`."""

from __future__ import annotations

import os

from volplane.api.names import sanitize_driver
from volplane.client.client import Client
from volplane.csi.client import Caller
from volplane.loops.controller import Unable
from volplane.loops.events import Recorder
from volplane.sidecars import Driver, beside
from volplane.sidecars.snapshotter.controller import COMPONENT, Contents
from volplane.sidecars.snapshotter.settings import Settings

__all__ = ["Settings", "run"]


async def run(
    client: Client,
    settings: Settings,
    *,
    caller: Caller | None = None,
    identity: str = "",
    namespace: str = "default",
    node: str = "",
) -> None:
    """Until cancelled. `node`: whose contents we handle, with --node-deployment ($NODE_NAME otherwise).

    Raises Unable where the driver takes no snapshots.
    """
    mine = (node or os.environ.get("NODE_NAME", "")) if settings.node_deployment else None
    if mine == "":
        raise Unable("The NODE_NAME environment variable must be set when using --node-deployment.")

    async def work(driver: Driver) -> None:
        if "CREATE_DELETE_SNAPSHOT" not in driver.controller:
            raise Unable("CSI driver does not support ControllerCreateSnapshot")
        async with Recorder(client, f"csi-snapshotter {driver.name}") as events:
            await Contents(client, driver, settings, events=events, node=mine).run()

    await beside(
        client,
        settings,
        COMPONENT,
        lambda driver: f"external-snapshotter-leader-{sanitize_driver(driver.name)}",
        work,
        caller=caller,
        identity=identity,
        namespace=namespace,
    )
