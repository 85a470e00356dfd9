"""Variants of the sample driver whose bug shows only after a certain sequence of calls and faults."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any

from tests.support.sample_driver.driver import SampleDriver
from volplane.csi import v1


class UnpublishesAllTargets(SampleDriver):
    """Unmounts every target of the volume when one is unpublished."""

    def __init__(self, root: str, node: str) -> None:
        super().__init__(root, node)
        self._targets: dict[str, set[str]] = {}

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        reply = await super().node_publish_volume(request)
        self._targets.setdefault(request.volume_id, set()).add(request.target_path)
        return reply

    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        for target in self._targets.pop(request.volume_id, set()):
            await self.mounter.unpublish(target)
        return await super().node_unpublish_volume(request)


class SecondUnstageWipes(SampleDriver):
    """Takes a volume that is not staged for one whose stage has failed, and discards its contents."""

    async def node_unstage_volume(self, request: v1.NodeUnstageVolumeRequest) -> v1.NodeUnstageVolumeResponse:
        staged, note = await self.devices(request.volume_id), self.find_record(request.volume_id)
        reply = await super().node_unstage_volume(request)
        if not staged and note is not None:
            os.truncate(self.image(request.volume_id), 0)
            os.truncate(self.image(request.volume_id), note["size"])
        return reply


class ForgetsNames(SampleDriver):
    """Keeps the ids of names in memory: a CreateVolume after a restart makes a second volume."""

    def __init__(self, root: str, node: str) -> None:
        super().__init__(root, node)
        self._names: dict[str, str] = {}

    def id_for(self, name: str) -> str:
        return self._names.setdefault(name, f"vol-{uuid.uuid4().hex[:16]}")


class ExpandsInMemory(SampleDriver):
    """Stores the size of an expanded volume only in memory."""

    def __init__(self, root: str, node: str) -> None:
        super().__init__(root, node)
        self._sizes: dict[str, int] = {}

    def save_record(self, id: str, note: dict[str, Any]) -> None:
        stored = super().find_record(id)
        if stored is not None:
            self._sizes[id] = note["size"]
            note = {**note, "size": stored["size"]}
        super().save_record(id, note)

    def delete_files(self, id: str) -> None:
        self._sizes.pop(id, None)
        super().delete_files(id)

    def find_record(self, id: str) -> dict[str, Any] | None:
        note = super().find_record(id)
        return {**note, "size": self._sizes.get(id, note["size"])} if note else None


class DetachesFromAnyNode(SampleDriver):
    """Detaches the volume from the node where it is, whatever node the request names."""

    async def controller_unpublish_volume(
        self, request: v1.ControllerUnpublishVolumeRequest
    ) -> v1.ControllerUnpublishVolumeResponse:
        request.node_id = ""
        return await super().controller_unpublish_volume(request)


SEQUENCE_MUTANTS: Mapping[str, type[SampleDriver]] = {
    "unpublishes-all-targets": UnpublishesAllTargets,
    "second-unstage-wipes": SecondUnstageWipes,
    "forgets-names": ForgetsNames,
    "expands-in-memory": ExpandsInMemory,
    "detaches-from-any-node": DetachesFromAnyNode,
}
