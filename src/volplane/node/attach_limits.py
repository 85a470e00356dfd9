"""Volume limits of drivers: NodeGetInfo is called again at the period that the CSIDriver asks for.

A limit that has become smaller shows as an attach that fails with RESOURCE_EXHAUSTED. A pod that waits for
such a volume would wait forever on this node. So it is rejected, and its owner creates another one, for which
the scheduler knows the new limit.
"""

from __future__ import annotations

import asyncio
import logging

from volplane.api import names
from volplane.api.errors import APIError
from volplane.api.storage import CSIDriver, VolumeAttachment
from volplane.base import clock
from volplane.client.cache import Cache
from volplane.csi import v1
from volplane.csi.outcome import CallError, Code
from volplane.node.csinode import CSINodeObject, DriverInfo, TopologyCollision
from volplane.node.volume_manager.manager import VolumeManager
from volplane.volumes.base import PodVolumeSpec
from volplane.volumes.csi import RegisteredDrivers, request

log = logging.getLogger(__name__)


class AttachLimits:
    def __init__(
        self,
        drivers: RegisteredDrivers,
        objects: Cache[CSIDriver],
        csinode: CSINodeObject,
        volumes: VolumeManager,
    ) -> None:
        self.drivers, self.objects, self.csinode, self.volumes = drivers, objects, csinode, volumes
        self._changed = asyncio.Event()
        self._due: dict[str, float] = {}

    async def run(self) -> None:
        self.drivers.on_changed(lambda name: self._changed.set())
        end = self.objects.subscribe(lambda old, new: self._changed.set())
        try:
            while True:
                await self._refresh_due_limits()
                await self._wait()
        finally:
            end()

    def update_period(self, driver: str) -> float:
        """Seconds between two calls of NodeGetInfo; 0: none."""
        found = self.objects.get(driver)
        return float((found.spec.node_allocatable_update_period_seconds if found is not None else 0) or 0)

    async def _refresh_due_limits(self) -> None:
        wanted = {d.name: self.update_period(d.name) for d in self.drivers if self.update_period(d.name)}
        now = clock.now()
        self._due = {name: self._due.get(name, now + period) for name, period in wanted.items()}
        for name, due in list(self._due.items()):
            if due <= now:
                await self.refresh_limit(name)
                self._due[name] = clock.now() + wanted[name]

    async def _wait(self) -> None:
        left = max(0.0, min(self._due.values()) - clock.now()) if self._due else None
        try:
            async with asyncio.timeout(left):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    async def refresh_limit(self, name: str) -> None:
        driver = self.drivers.get(name)
        if driver is None:
            return
        try:
            reply = await driver.send("NodeGetInfo", v1.NodeGetInfoRequest())
            topology = dict(reply.accessible_topology.segments)
            await self.csinode.add(DriverInfo(name, reply.node_id, topology, reply.max_volumes_per_node))
        except (CallError, APIError, TopologyCollision, TimeoutError) as error:
            log.warning("volume limit of driver %s was not updated: %s", name, error)

    # --- pods that cannot get their volumes

    async def find_exceeded_limit(self, pod: str) -> str:
        """Why the pod cannot get its volumes on this node; "" if it still can."""
        for spec in self.volumes.unmounted_specs(pod):
            if why := await self._find_exceeded_limit(spec):
                return why
        return ""

    async def _find_exceeded_limit(self, spec: PodVolumeSpec) -> str:
        if spec.volume is None or spec.volume.spec.csi is None:
            return ""
        driver, handle = request.driver_of(spec), request.handle_of(spec)
        if not self.update_period(driver):
            return ""
        context = self.volumes.context
        name = names.attachment_name(handle, driver, context.node)
        try:
            found = await context.client.find(VolumeAttachment, name)
        except APIError:
            return ""
        error = found.status.attach_error if found is not None else None
        if error is None or error.error_code != Code.RESOURCE_EXHAUSTED:
            return ""
        await self.refresh_limit(driver)
        return f"Node {context.node} cannot attach volume {spec.name}, its limit is reached: {error.message}"
