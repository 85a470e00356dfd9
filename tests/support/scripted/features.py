"""Optional capabilities of the scripted driver: one class each."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.timestamp_pb2 import Timestamp

from tests.support.scripted.driver import ZONE, ScriptedDriver
from volplane.base import clock
from volplane.csi import v1
from volplane.csi.outcome import CallError, Code


class Attach(ScriptedDriver):
    async def controller_publish_volume(
        self, request: v1.ControllerPublishVolumeRequest
    ) -> v1.ControllerPublishVolumeResponse:
        def work() -> v1.ControllerPublishVolumeResponse:
            nodes = self.publications[request.volume_id]
            if nodes - {request.node_id}:
                self.violations += 1
                raise CallError(Code.FAILED_PRECONDITION, f"published to {', '.join(sorted(nodes))}")
            nodes.add(request.node_id)
            return v1.ControllerPublishVolumeResponse(publish_context={"devicePath": "/dev/xvdba"})

        reply: v1.ControllerPublishVolumeResponse = await self._do("ControllerPublishVolume", request, work)
        return reply

    async def controller_unpublish_volume(
        self, request: v1.ControllerUnpublishVolumeRequest
    ) -> v1.ControllerUnpublishVolumeResponse:
        def work() -> v1.ControllerUnpublishVolumeResponse:
            self.publications[request.volume_id].discard(request.node_id)
            return v1.ControllerUnpublishVolumeResponse()

        reply: v1.ControllerUnpublishVolumeResponse = await self._do(
            "ControllerUnpublishVolume", request, work
        )
        return reply


class List(ScriptedDriver):
    async def list_volumes(self, request: v1.ListVolumesRequest) -> v1.ListVolumesResponse:
        def work() -> v1.ListVolumesResponse:
            """One volume per page."""
            known = sorted(self.volumes.values(), key=lambda v: v.volume_id)
            at = int(request.starting_token or 0)
            entries = [
                v1.ListVolumesResponse.Entry(volume=volume, status=self._status(volume))
                for volume in known[at : at + 1]
            ]
            following = str(at + 1) if at + 1 < len(known) else ""
            return v1.ListVolumesResponse(entries=entries, next_token=following)

        reply: v1.ListVolumesResponse = await self._do("ListVolumes", request, work)
        return reply

    def _status(self, volume: v1.Volume) -> v1.ListVolumesResponse.VolumeStatus:
        nodes = sorted(self.publications[volume.volume_id])
        return v1.ListVolumesResponse.VolumeStatus(published_node_ids=nodes)


class GetVolume(ScriptedDriver):
    async def controller_get_volume(
        self, request: v1.ControllerGetVolumeRequest
    ) -> v1.ControllerGetVolumeResponse:
        def work() -> v1.ControllerGetVolumeResponse:
            volume = self.volume(request.volume_id)
            nodes = sorted(self.publications[request.volume_id])
            status = v1.ControllerGetVolumeResponse.VolumeStatus(published_node_ids=nodes)
            return v1.ControllerGetVolumeResponse(volume=volume, status=status)

        reply: v1.ControllerGetVolumeResponse = await self._do("ControllerGetVolume", request, work)
        return reply


class Capacity(ScriptedDriver):
    async def get_capacity(self, request: v1.GetCapacityRequest) -> v1.GetCapacityResponse:
        def work() -> v1.GetCapacityResponse:
            zone = request.accessible_topology.segments.get(ZONE, "")
            free = self.available if isinstance(self.available, int) else self.available.get(zone, 0)
            largest = {"maximum_volume_size": {"value": self.largest}} if self.largest else {}
            return v1.GetCapacityResponse(available_capacity=free, **largest)

        reply: v1.GetCapacityResponse = await self._do("GetCapacity", request, work)
        return reply


class Expand(ScriptedDriver):
    async def controller_expand_volume(
        self, request: v1.ControllerExpandVolumeRequest
    ) -> v1.ControllerExpandVolumeResponse:
        def work() -> v1.ControllerExpandVolumeResponse:
            volume = self.volume(request.volume_id)
            volume.capacity_bytes = max(volume.capacity_bytes, request.capacity_range.required_bytes)
            return v1.ControllerExpandVolumeResponse(
                capacity_bytes=volume.capacity_bytes, node_expansion_required=self.node_expansion
            )

        reply: v1.ControllerExpandVolumeResponse = await self._do("ControllerExpandVolume", request, work)
        return reply


class NodeExpand(ScriptedDriver):
    async def node_expand_volume(self, request: v1.NodeExpandVolumeRequest) -> v1.NodeExpandVolumeResponse:
        def work() -> v1.NodeExpandVolumeResponse:
            return v1.NodeExpandVolumeResponse(capacity_bytes=request.capacity_range.required_bytes)

        reply: v1.NodeExpandVolumeResponse = await self._do("NodeExpandVolume", request, work)
        return reply

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        return v1.NodeGetInfoResponse(node_id="node-1")


class Modify(ScriptedDriver):
    async def controller_modify_volume(
        self, request: v1.ControllerModifyVolumeRequest
    ) -> v1.ControllerModifyVolumeResponse:
        def work() -> v1.ControllerModifyVolumeResponse:
            self.volume(request.volume_id)
            self.state.modified[request.volume_id] = dict(request.mutable_parameters)
            return v1.ControllerModifyVolumeResponse()

        reply: v1.ControllerModifyVolumeResponse = await self._do("ControllerModifyVolume", request, work)
        return reply


class Snapshots(ScriptedDriver):
    async def create_snapshot(self, request: v1.CreateSnapshotRequest) -> v1.CreateSnapshotResponse:
        def work() -> v1.CreateSnapshotResponse:
            made = self.snapshots.get(request.name)
            if made is None:
                made = self.snapshots[request.name] = self._create_snapshot(
                    request.name, request.source_volume_id
                )
            elif made.source_volume_id != request.source_volume_id:
                raise CallError(Code.ALREADY_EXISTS, f"{request.name} is of {made.source_volume_id}")
            return v1.CreateSnapshotResponse(snapshot=self._count_poll(made))

        reply: v1.CreateSnapshotResponse = await self._do("CreateSnapshot", request, work)
        return reply

    def _create_snapshot(self, name: str, handle: str) -> v1.Snapshot:
        now = Timestamp()
        now.FromDatetime(clock.wall())
        size = self.volume(handle).capacity_bytes
        return v1.Snapshot(
            snapshot_id=f"snap-{name}", source_volume_id=handle, size_bytes=size, creation_time=now
        )

    def _count_poll(self, snapshot: v1.Snapshot) -> v1.Snapshot:
        self._polls[snapshot.snapshot_id] += 1
        snapshot.ready_to_use = self._polls[snapshot.snapshot_id] > self.ready_after
        return snapshot

    async def delete_snapshot(self, request: v1.DeleteSnapshotRequest) -> v1.DeleteSnapshotResponse:
        def work() -> v1.DeleteSnapshotResponse:
            for name, snapshot in list(self.snapshots.items()):
                if snapshot.snapshot_id == request.snapshot_id:
                    del self.snapshots[name]
            return v1.DeleteSnapshotResponse()

        reply: v1.DeleteSnapshotResponse = await self._do("DeleteSnapshot", request, work)
        return reply


class ListSnapshots(ScriptedDriver):
    async def list_snapshots(self, request: v1.ListSnapshotsRequest) -> v1.ListSnapshotsResponse:
        def work() -> v1.ListSnapshotsResponse:
            entry = v1.ListSnapshotsResponse.Entry
            found = [
                s
                for s in self.snapshots.values()
                if request.snapshot_id in ("", s.snapshot_id)
                and request.source_volume_id in ("", s.source_volume_id)
            ]
            return v1.ListSnapshotsResponse(entries=[entry(snapshot=s) for s in found])

        reply: v1.ListSnapshotsResponse = await self._do("ListSnapshots", request, work)
        return reply


class Groups(Snapshots):
    async def create_volume_group_snapshot(
        self, request: v1.CreateVolumeGroupSnapshotRequest
    ) -> v1.CreateVolumeGroupSnapshotResponse:
        def work() -> v1.CreateVolumeGroupSnapshotResponse:
            group = self.state.groups.get(request.name)
            if group is None:
                group = self.state.groups[request.name] = self._group(request)
            return v1.CreateVolumeGroupSnapshotResponse(group_snapshot=group)

        reply: v1.CreateVolumeGroupSnapshotResponse = await self._do(
            "CreateVolumeGroupSnapshot", request, work
        )
        return reply

    def _group(self, request: v1.CreateVolumeGroupSnapshotRequest) -> v1.VolumeGroupSnapshot:
        handle = f"group-{request.name}"
        now = Timestamp()
        now.FromDatetime(clock.wall())
        members = []
        for source in request.source_volume_ids:
            name = f"{request.name}-{source}"
            member = self.snapshots[name] = self._create_snapshot(name, source)
            member.group_snapshot_id, member.ready_to_use = handle, True
            members.append(member)
        return v1.VolumeGroupSnapshot(
            group_snapshot_id=handle, snapshots=members, creation_time=now, ready_to_use=True
        )

    async def delete_volume_group_snapshot(
        self, request: v1.DeleteVolumeGroupSnapshotRequest
    ) -> v1.DeleteVolumeGroupSnapshotResponse:
        def work() -> v1.DeleteVolumeGroupSnapshotResponse:
            for name, group in list(self.state.groups.items()):
                if group.group_snapshot_id == request.group_snapshot_id:
                    del self.state.groups[name]
            for name, snapshot in list(self.snapshots.items()):
                if snapshot.group_snapshot_id == request.group_snapshot_id:
                    del self.snapshots[name]
            return v1.DeleteVolumeGroupSnapshotResponse()

        reply: v1.DeleteVolumeGroupSnapshotResponse = await self._do(
            "DeleteVolumeGroupSnapshot", request, work
        )
        return reply

    async def get_volume_group_snapshot(
        self, request: v1.GetVolumeGroupSnapshotRequest
    ) -> v1.GetVolumeGroupSnapshotResponse:
        def work() -> v1.GetVolumeGroupSnapshotResponse:
            for group in self.state.groups.values():
                if group.group_snapshot_id == request.group_snapshot_id:
                    return v1.GetVolumeGroupSnapshotResponse(group_snapshot=group)
            raise CallError(Code.NOT_FOUND, f"no group {request.group_snapshot_id}")

        reply: v1.GetVolumeGroupSnapshotResponse = await self._do("GetVolumeGroupSnapshot", request, work)
        return reply


# Feature → its calls, or the capability that it declares.
FEATURES: dict[str, type[ScriptedDriver]] = {
    "attach": Attach,
    "list": List,
    "get-volume": GetVolume,
    "capacity": Capacity,
    "expand": Expand,
    "node-expand": NodeExpand,
    "modify": Modify,
    "snapshots": Snapshots,
    "list-snapshots": ListSnapshots,
    "groups": Groups,
}
EXTRA_CAPABILITIES: dict[str, str] = {
    "clone": "CLONE_VOLUME",
    "topology": "VOLUME_ACCESSIBILITY_CONSTRAINTS",
    "readonly": "PUBLISH_READONLY",
    "list-published": "LIST_VOLUMES_PUBLISHED_NODES",
    "multi-writer": "SINGLE_NODE_MULTI_WRITER",
    "condition": "VOLUME_CONDITION",
    "offline": "OFFLINE",
}


def driver_class(features: Iterable[str]) -> type[ScriptedDriver]:
    """A class with these features; unknown ones are a KeyError."""
    chosen = list(dict.fromkeys(features))
    bases = [FEATURES[f] for f in chosen if f not in EXTRA_CAPABILITIES]
    bases = [b for b in bases if not any(b is not o and issubclass(o, b) for o in bases)]
    extra = frozenset(EXTRA_CAPABILITIES[f] for f in chosen if f in EXTRA_CAPABILITIES)
    return type("Scripted", (*bases, ScriptedDriver), {"extra_capabilities": extra})
