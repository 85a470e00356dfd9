"""What a registered driver adds to the API: its CSINode entry, and the node's labels and annotation."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct

from volplane.api.annotations import CSI_NODE_ID_ANNOTATION, MIGRATED_PLUGINS_ANNOTATION
from volplane.api.codec import to_dict
from volplane.api.core import Node
from volplane.api.errors import APIError
from volplane.api.meta import ObjectMeta
from volplane.api.storage import CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources
from volplane.client.client import Client
from volplane.node.status import NodeObject
from volplane.rules.csi_translation import TRANSLATED_PLUGINS

log = logging.getLogger(__name__)

TRIES, PAUSE, FACTOR = 4, 0.01, 5
LARGEST_COUNT = 2**31 - 1


class TopologyCollision(Exception):
    pass


class DriverInfo(Struct, frozen=True):
    """The reply of NodeGetInfo."""

    name: str
    node_id: str
    topology: Mapping[str, str] = {}
    limit: int = 0

    def to_csi_node_driver(self) -> CSINodeDriver:
        if self.limit < 0:
            log.warning("driver %s reports a negative volume limit, %d", self.name, self.limit)
        count = VolumeNodeResources(min(self.limit, LARGEST_COUNT)) if self.limit > 0 else None
        return CSINodeDriver(self.name, self.node_id, tuple(sorted(self.topology)), count)


class CSINodeObject:
    def __init__(self, client: Client, node: NodeObject) -> None:
        self.client, self.node = client, node
        self._lock = asyncio.Lock()  # drivers register concurrently and write the same two objects

    async def ensure(self) -> CSINode:
        """The CSINode of this Node. One of an earlier Node with the same name is replaced."""
        found = await self.client.find(CSINode, self.node.name)
        if found is not None and not self._is_ours(found):
            await self.client.delete(CSINode, self.node.name, uid=found.uid, missing_ok=True)
            found = None
        migrated = {MIGRATED_PLUGINS_ANNOTATION: ",".join(TRANSLATED_PLUGINS)}
        if found is not None:
            return await self._annotate(found, migrated)
        meta = ObjectMeta(
            name=self.node.name,
            annotations=migrated,
            owner_references=(self.node.owner_reference(),),
        )
        return await self.client.create(CSINode(metadata=meta, spec=CSINodeSpec()), exists_ok=True)

    async def _annotate(self, found: CSINode, migrated: Mapping[str, str]) -> CSINode:
        """An earlier version of this node may have translated other plugins."""
        if migrated.items() <= found.metadata.annotations.items():
            return found
        return await self.client.patch(
            CSINode, found.name, merge={"metadata": {"annotations": dict(migrated)}}
        )

    def _is_ours(self, found: CSINode) -> bool:
        return any(o.kind == "Node" and o.uid == self.node.uid for o in found.metadata.owner_references)

    async def add(self, driver: DriverInfo) -> None:
        async with self._lock:
            await _retry_on_error(lambda: self._write_node(driver))
            await _retry_on_error(lambda: self._write_entry(driver))

    async def remove(self, name: str) -> None:
        """Remove the driver. Its topology labels stay, because existing volumes need them."""
        async with self._lock:
            await _retry_on_error(lambda: self._drop_entry(name))
            await _retry_on_error(lambda: self._drop_annotation(name))

    async def _write_entry(self, driver: DriverInfo) -> None:
        current, entry = await self.ensure(), driver.to_csi_node_driver()
        if entry in current.spec.drivers:
            return
        others = [d for d in current.spec.drivers if d.name != driver.name]
        await self._put_drivers(current, (*others, entry))

    async def _drop_entry(self, name: str) -> None:
        current = await self.client.find(CSINode, self.node.name)
        if current is None or all(d.name != name for d in current.spec.drivers):
            return
        await self._put_drivers(current, tuple(d for d in current.spec.drivers if d.name != name))

    async def _put_drivers(self, current: CSINode, drivers: tuple[CSINodeDriver, ...]) -> None:
        body = {"spec": {"drivers": [to_dict(d) for d in drivers]}}
        await self.client.patch(
            CSINode, self.node.name, merge=body, revision=current.metadata.resource_version
        )

    async def _write_node(self, driver: DriverInfo) -> None:
        node = await self.client.get(Node, self.node.name)
        for key, value in driver.topology.items():
            present = node.metadata.labels.get(key)
            if present is not None and present != value:
                raise TopologyCollision(
                    f'detected topology value collision: driver reported "{key}":"{value}" '
                    f'but existing label is "{key}":"{present}"'
                )
        ids = {**_ids(node), driver.name: driver.node_id}
        meta: dict[str, object] = {}
        if ids != _ids(node):
            meta["annotations"] = {CSI_NODE_ID_ANNOTATION: _spell(ids)}
        if not driver.topology.items() <= node.metadata.labels.items():
            meta["labels"] = dict(driver.topology)
        await self._patch_node(node, meta)

    async def _drop_annotation(self, name: str) -> None:
        node = await self.client.find(Node, self.node.name)
        if node is None or name not in _ids(node):
            return
        ids = {k: v for k, v in _ids(node).items() if k != name}
        await self._patch_node(node, {"annotations": {CSI_NODE_ID_ANNOTATION: _spell(ids) if ids else None}})

    async def _patch_node(self, node: Node, meta: dict[str, object]) -> None:
        if meta:
            revision = node.metadata.resource_version
            await self.client.patch(Node, node.name, merge={"metadata": meta}, revision=revision)


def _ids(node: Node) -> dict[str, str]:
    try:
        found = json.loads(node.metadata.annotations.get(CSI_NODE_ID_ANNOTATION) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _spell(ids: Mapping[str, str]) -> str:
    return json.dumps(ids, separators=(",", ":"), sort_keys=True)


async def _retry_on_error(write: Callable[[], Awaitable[None]]) -> None:
    """Retry: others write the same objects, so conflicts are expected."""
    pause = PAUSE
    for attempt in range(TRIES):
        try:
            return await write()
        except APIError:
            if attempt == TRIES - 1:
                raise
        await asyncio.sleep(pause)
        pause *= FACTOR
