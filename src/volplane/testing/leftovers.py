"""Leftovers of a cluster's volumes: mounts, loop devices, and volumes that only the driver knows."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from volplane.api.core import PersistentVolume
from volplane.api.snapshot import VolumeSnapshotContent
from volplane.cluster.single_process import Cluster
from volplane.csi.call_interceptor import CallInterceptor, CsiCall
from volplane.csi.outcome import CallError
from volplane.host import Host
from volplane.host.devices import DELETED
from volplane.rules.csi_translation import find_csi_source
from volplane.testing import call_audit, driver_query
from volplane.testing.capabilities import DriverCapabilities

RELEASE_TRIES, RELEASE_PAUSE = (
    20,
    0.1,
)  # seconds; a device is busy until the last process of its container is gone
LIST_TIMEOUT = 15.0  # seconds until a killed driver must respond again

_PARTS = ("pods", "plugins/kubernetes.io/csi")  # subdirectories of a node's directory
_VOLUMES = ("kubernetes.io~csi", "kubernetes.io/csi")  # parts of the paths of volumes

log = logging.getLogger(__name__)


async def find_mounts(host: Host, roots: Iterable[Path]) -> list[str]:
    """Mounts of the driver's volumes below the nodes' directories."""
    table = await host.mounts()
    found = [entry.target for root in roots for part in _PARTS for entry in table.under(str(root / part))]
    return [target for target in found if any(part in target for part in _VOLUMES)]


async def find_devices(host: Host, directory: Path, calls: Iterable[CsiCall]) -> dict[str, str]:
    """Loop devices of files below the directory; a deleted file is recognised by the name of a volume."""
    found, volumes = await host.loops_below(str(directory)), call_audit.requested_volumes(calls)
    for device, file in (await host.loops()).items():
        path = Path(file.removesuffix(DELETED))
        if file.endswith(DELETED) and {path.name, path.stem} & volumes:
            found[device] = str(path)
    return found


async def release_devices(host: Host, directory: Path, calls: Iterable[CsiCall]) -> None:
    """Release the loop devices that a driver has left."""
    known = list(calls)
    bound = await find_devices(host, directory, known)
    for _ in range(RELEASE_TRIES):
        for device, file in bound.items():
            with suppress(OSError):
                await host.loop_detach(device, file)
        if not (bound := await find_devices(host, directory, known)):
            return
        await asyncio.sleep(RELEASE_PAUSE)
    log.error("loop devices are still in use: %s", ", ".join(sorted(bound)))


class Leftovers:
    """The leftovers of a cluster with a call interceptor."""

    def __init__(self, cluster: Cluster, tap: CallInterceptor) -> None:
        self._cluster, self._tap = cluster, tap
        self._controllers: set[str] = set()  # sockets

    async def find(self) -> list[str]:
        host, place = self._cluster.host, self._cluster.layout.directory
        mounted = await find_mounts(host, [member.root for member in self._cluster.members])
        bound = await find_devices(host, place, self._tap.calls)
        volumes, snapshots = await self._find_unknown_to_cluster(str(place))
        return [
            *(f"mount {target}" for target in mounted),
            *(f"loop device {device} of {file}" for device, file in bound.items()),
            *(f"volume {id}, which only the driver knows" for id in volumes),
            *(f"snapshot {id}, which only the driver knows" for id in snapshots),
        ]

    async def find_new(self, before: set[str]) -> list[str]:
        """What is new since `before`, after the last processes of containers had time to end."""
        left: list[str] = []
        for _ in range(RELEASE_TRIES):
            if not (left := sorted(set(await self.find()) - before)):
                break
            await asyncio.sleep(RELEASE_PAUSE)
        return left

    async def _find_unknown_to_cluster(self, place: str) -> driver_query.VolumesAndSnapshots:
        """Volumes and snapshots that a user's driver lists and that have no object in the cluster."""
        facts = self._cluster.discovered.facts
        # Remembered, because old calls are dropped.
        self._controllers |= driver_query.controller_sockets(self._tap.calls, place)
        capabilities = DriverCapabilities(controller={name for fact in facts for name in fact.controller})
        try:
            async with asyncio.timeout(LIST_TIMEOUT):
                sockets = filter(os.path.exists, self._controllers)
                volumes, snapshots = await driver_query.list_volumes_and_snapshots(capabilities, sockets)
        except (TimeoutError, CallError) as error:
            log.warning("cannot compare the driver's volumes with the cluster's: %s", error or "no answer")
            return frozenset(), frozenset()
        client = self._cluster.client
        if volumes:
            known = [find_csi_source(volume) for volume in await client.list(PersistentVolume)]
            volumes -= {source.volume_handle for source in known if source is not None}
        if snapshots:
            contents = await client.list(VolumeSnapshotContent)
            snapshots -= {one.status.snapshot_handle for one in contents if one.status is not None}
        return volumes, snapshots
