"""A small correct driver: disks are sparse files, attached by a record, staged as loop devices.

All its state is on disk, so it can be killed at any moment; its instances share one directory, as those of a
real driver share a storage system.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from volplane import sdk
from volplane.csi import v1
from volplane.sdk import errors

GIB = 1 << 30
FILE_SYSTEMS = ("", "ext4", "xfs")
MAX_VOLUMES = 4  # volumes on a node
Mode = v1.VolumeCapability.AccessMode
SHARED = (Mode.MULTI_NODE_READER_ONLY, Mode.MULTI_NODE_SINGLE_WRITER, Mode.MULTI_NODE_MULTI_WRITER)


class SampleDriver(sdk.Driver):
    name, version = "blocks.example.com", "1.0"
    extra_capabilities: ClassVar[frozenset[str]] = frozenset({"CLONE_VOLUME", "SINGLE_NODE_MULTI_WRITER"})

    def __init__(self, root: str, node: str) -> None:
        super().__init__()
        self.root, self.node = Path(root), node
        self.host = sdk.Host()
        self.mounter = sdk.Mounter(self.host)

    async def start(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)

    async def stop(self) -> None:
        await self.host.close()

    # --- records on disk

    def image(self, id: str) -> str:
        return str(self.root / f"{os.path.basename(id)}.img")

    def find_record(self, id: str) -> dict[str, Any] | None:
        if "/" in id:  # none of our ids: as a path it would lead to another one
            return None
        try:
            text = (self.root / f"{id}.json").read_text()
        except FileNotFoundError:
            return None
        record: dict[str, Any] = json.loads(text)
        return record

    def save_record(self, id: str, note: dict[str, Any]) -> None:
        """Write atomically, so that a killed driver finds the old record or the new one."""
        place = self.root / f"{id}.json"
        fresh = self.root / f".{id}.{os.getpid()}"
        fresh.write_text(json.dumps(note))
        fresh.replace(place)

    def list_records(self, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for place in sorted(self.root.glob(f"{prefix}-*.json")):
            if note := self.find_record(place.stem):
                yield place.stem, note

    def get_record(self, id: str) -> dict[str, Any]:
        if (note := self.find_record(id)) is None:
            raise errors.NotFound(f"there is no volume {id}")
        return note

    # --- controller

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        if why_not := self.unsupported_reason(request.volume_capabilities):
            raise errors.InvalidArgument(why_not)
        id, wanted = self.id_for(request.name), request.capacity_range
        source = source_of(request)
        note = self.find_record(id)
        if note is None:
            size = self.choose_size(wanted)
            await self.fill(id, size, source)
            note = {"name": request.name, "size": size, "source": source, "key": key_of(request.secrets)}
            self.save_record(id, note)
        low, high = wanted.required_bytes, wanted.limit_bytes or note["size"]
        if not low <= note["size"] <= high or note["source"] != source:
            raise errors.AlreadyExists(f"{request.name} has {note['size']} bytes of {note['source']}")
        volume = v1.Volume(volume_id=id, capacity_bytes=self.reported_size(note["size"]))
        if source:
            volume.content_source.CopyFrom(request.volume_content_source)
        return v1.CreateVolumeResponse(volume=volume)

    def choose_size(self, wanted: v1.CapacityRange) -> int:
        return wanted.required_bytes or min(wanted.limit_bytes or GIB, GIB)

    def unsupported_reason(self, capabilities: Any) -> str:
        """What of the capabilities a disk does not support; "" if it supports all."""
        for capability in capabilities:
            if capability.access_mode.mode in SHARED:
                return "a disk is at one node only"
            if capability.mount.fs_type not in FILE_SYSTEMS:
                return f"{capability.mount.fs_type} is no file system of a disk"
        return ""

    def id_for(self, name: str) -> str:
        return f"vol-{hashlib.sha256(name.encode()).hexdigest()[:16]}"

    def reported_size(self, size: int) -> int:
        return size

    async def fill(self, id: str, size: int, source: list[str]) -> None:
        half = f"{self.image(id)}.half"
        if source:
            origin = self.find_record(source[1])
            if origin is None:
                raise errors.NotFound(f"there is no {source[0]} {source[1]}")
            if size < origin["size"]:
                raise errors.OutOfRange(f"{source[1]} has {origin['size']} bytes")
            await self.copy(self.origin(source[1]), half)
        await self.host.call(grow_file, half, size)
        await self.host.call(os.replace, half, self.image(id))

    def origin(self, id: str) -> str:
        return self.image(id)

    async def copy(self, source: str, target: str) -> None:
        await self.host.call(os.sync)
        await self.host.run(["cp", "--sparse=always", source, target])

    async def delete_volume(self, request: v1.DeleteVolumeRequest) -> v1.DeleteVolumeResponse:
        note = self.find_record(request.volume_id)
        if note is not None and note.get("nodes"):
            raise errors.FailedPrecondition(f"{request.volume_id} is at {note['nodes']}")
        self.delete_files(request.volume_id)
        return v1.DeleteVolumeResponse()

    def delete_files(self, id: str) -> None:
        if "/" in id:
            return
        for place in (self.image(id), str(self.root / f"{os.path.basename(id)}.json")):
            with suppress(FileNotFoundError):
                os.unlink(place)

    async def controller_publish_volume(
        self, request: v1.ControllerPublishVolumeRequest
    ) -> v1.ControllerPublishVolumeResponse:
        note = self.get_record(request.volume_id)
        if not request.node_id.startswith(("node-", "worker-", "probe")):
            raise errors.NotFound(f"there is no node {request.node_id}")
        nodes = note.get("nodes", [])
        if request.node_id not in nodes:
            self.check_nodes(nodes, request)
            self.save_record(request.volume_id, {**note, "nodes": [*nodes, request.node_id]})
        return v1.ControllerPublishVolumeResponse(publish_context={"disk": f"{request.volume_id}.img"})

    def check_nodes(self, nodes: list[str], request: v1.ControllerPublishVolumeRequest) -> None:
        if nodes:
            raise errors.FailedPrecondition(f"{request.volume_id} is at {nodes[0]}")
        if (
            sum(request.node_id in note.get("nodes", ()) for _, note in self.list_records("vol"))
            >= MAX_VOLUMES
        ):
            raise errors.ResourceExhausted(f"{request.node_id} has {MAX_VOLUMES} volumes")

    async def controller_unpublish_volume(
        self, request: v1.ControllerUnpublishVolumeRequest
    ) -> v1.ControllerUnpublishVolumeResponse:
        note = self.find_record(request.volume_id)
        if note is not None:
            nodes = [n for n in note.get("nodes", []) if request.node_id and n != request.node_id]
            self.save_record(request.volume_id, {**note, "nodes": nodes})
        return v1.ControllerUnpublishVolumeResponse()

    async def validate_volume_capabilities(
        self, request: v1.ValidateVolumeCapabilitiesRequest
    ) -> v1.ValidateVolumeCapabilitiesResponse:
        self.get_record(request.volume_id)
        if why_not := self.unsupported_reason(request.volume_capabilities):
            return v1.ValidateVolumeCapabilitiesResponse(message=why_not)
        confirmed = v1.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_capabilities=request.volume_capabilities
        )
        return v1.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    async def list_volumes(self, request: v1.ListVolumesRequest) -> v1.ListVolumesResponse:
        after, most = request.starting_token, request.max_entries
        if after and not after.startswith("vol-"):
            raise errors.Aborted(f"{after} is no token")
        left = [(id, note) for id, note in self.list_records("vol") if id > after]
        page = left[:most] if most else left
        entry = v1.ListVolumesResponse.Entry
        return v1.ListVolumesResponse(
            entries=[entry(volume=v1.Volume(volume_id=i, capacity_bytes=n["size"])) for i, n in page],
            next_token=page[-1][0] if len(page) < len(left) else "",
        )

    async def get_capacity(self, request: v1.GetCapacityRequest) -> v1.GetCapacityResponse:
        return v1.GetCapacityResponse(available_capacity=100 * GIB)

    async def create_snapshot(self, request: v1.CreateSnapshotRequest) -> v1.CreateSnapshotResponse:
        id = f"snap-{hashlib.sha256(request.name.encode()).hexdigest()[:16]}"
        note = self.find_record(id)
        if note is None:
            source = self.get_record(request.source_volume_id)
            await self.copy_snapshot(request.source_volume_id, id)
            note = {"size": source["size"], "volume": request.source_volume_id, "key": source["key"]}
            note["time"] = int(time.time())
            self.save_record(id, note)
        if note["volume"] != request.source_volume_id:
            raise errors.AlreadyExists(f"{request.name} is of {note['volume']}")
        return v1.CreateSnapshotResponse(snapshot=to_snapshot(id, note))

    async def copy_snapshot(self, volume: str, snapshot: str) -> None:
        half = f"{self.image(snapshot)}.half"
        await self.copy(self.image(volume), half)
        await self.host.call(os.replace, half, self.image(snapshot))

    async def delete_snapshot(self, request: v1.DeleteSnapshotRequest) -> v1.DeleteSnapshotResponse:
        self.delete_files(request.snapshot_id)
        return v1.DeleteSnapshotResponse()

    async def list_snapshots(self, request: v1.ListSnapshotsRequest) -> v1.ListSnapshotsResponse:
        entry = v1.ListSnapshotsResponse.Entry
        after, most = request.starting_token, request.max_entries
        if after and not after.startswith("snap-"):
            raise errors.Aborted(f"{after} is no token")
        left = [
            (id, note)
            for id, note in self.list_records("snap")
            if request.snapshot_id in ("", id)
            and request.source_volume_id in ("", note["volume"])
            and id > after
        ]
        page = left[:most] if most else left
        return v1.ListSnapshotsResponse(
            entries=[entry(snapshot=to_snapshot(id, note)) for id, note in page],
            next_token=page[-1][0] if len(page) < len(left) else "",
        )

    async def controller_expand_volume(
        self, request: v1.ControllerExpandVolumeRequest
    ) -> v1.ControllerExpandVolumeResponse:
        note, size = self.get_record(request.volume_id), request.capacity_range.required_bytes
        if size > note["size"]:
            await self.host.call(grow_file, self.image(request.volume_id), size)
            note = {**note, "size": size}
            self.save_record(request.volume_id, note)
        return v1.ControllerExpandVolumeResponse(capacity_bytes=note["size"], node_expansion_required=True)

    # --- node

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        return v1.NodeGetInfoResponse(node_id=self.node, max_volumes_per_node=MAX_VOLUMES)

    async def node_stage_volume(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        note = self.get_record(request.volume_id)
        if request.publish_context.get("disk") != f"{request.volume_id}.img":
            raise errors.InvalidArgument("the disk is not attached: the publish context is missing")
        if note["key"] and key_of(request.secrets) != note["key"]:
            raise errors.PermissionDenied(f"the key does not open {request.volume_id}")
        device = await self.attach_loop_device(request.volume_id)
        if not request.volume_capability.HasField("block"):
            await self.format(device, request)
        return v1.NodeStageVolumeResponse()

    async def format(self, device: str, request: v1.NodeStageVolumeRequest) -> None:
        mount = request.volume_capability.mount
        flags = tuple(mount.mount_flags)
        await self.mounter.stage(device, request.staging_target_path, mount.fs_type or "ext4", flags)

    async def node_unstage_volume(self, request: v1.NodeUnstageVolumeRequest) -> v1.NodeUnstageVolumeResponse:
        await self.mounter.unstage(request.staging_target_path)
        await self.release(request.volume_id)
        return v1.NodeUnstageVolumeResponse()

    async def devices(self, id: str) -> list[str]:
        """The loop devices of the volume, by the file's name: each container has another path to it."""
        name = os.path.basename(self.image(id))
        return [
            device for device, file in (await self.host.loops()).items() if os.path.basename(file) == name
        ]

    def device_user(self, id: str) -> Path:
        """A file that exists while this node uses the device: all nodes of a test have the same devices."""
        return self.root / f".{os.path.basename(id)}.{self.node}.device"

    async def attach_loop_device(self, id: str) -> str:
        self.device_user(id).touch()
        found = await self.devices(id)
        return found[0] if found else await self.host.loop_attach(self.image(id))

    async def release(self, id: str) -> None:
        if not self.device_user(id).exists():
            return
        for device in await self.devices(id):
            await self.host.loop_detach(device)
        self.device_user(id).unlink()

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        self.get_record(request.volume_id)
        if request.volume_capability.HasField("block"):
            device = await self.attach_loop_device(request.volume_id)
            await self.mounter.publish_block(device, request.target_path)
            return v1.NodePublishVolumeResponse()
        alone = request.volume_capability.access_mode.mode == Mode.SINGLE_NODE_SINGLE_WRITER
        await self.mounter.publish(
            request.staging_target_path,
            request.target_path,
            readonly=self.is_readonly(request),
            exclusive=alone,
        )
        return v1.NodePublishVolumeResponse()

    def is_readonly(self, request: v1.NodePublishVolumeRequest) -> bool:
        return bool(request.readonly)

    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        await self.mounter.unpublish(request.target_path)
        return v1.NodeUnpublishVolumeResponse()

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        return v1.NodeGetVolumeStatsResponse(usage=await self.mounter.usage(request.volume_path))

    async def node_expand_volume(self, request: v1.NodeExpandVolumeRequest) -> v1.NodeExpandVolumeResponse:
        self.get_record(request.volume_id)
        for device in await self.devices(request.volume_id):
            await self.host.loop_resize(device)
        size = await self.mounter.grow(request.volume_path, request.capacity_range.required_bytes)
        return v1.NodeExpandVolumeResponse(capacity_bytes=size)


def source_of(request: v1.CreateVolumeRequest) -> list[str]:
    source = request.volume_content_source
    if source.HasField("snapshot"):
        return ["snapshot", source.snapshot.snapshot_id]
    return ["volume", source.volume.volume_id] if source.HasField("volume") else []


def key_of(secrets: Any) -> str:
    return hashlib.sha256(secrets["key"].encode()).hexdigest() if "key" in secrets else ""


def to_snapshot(id: str, note: dict[str, Any]) -> v1.Snapshot:
    return v1.Snapshot(
        snapshot_id=id,
        source_volume_id=note["volume"],
        size_bytes=note["size"],
        creation_time={"seconds": note["time"]},
        ready_to_use=True,
    )


def grow_file(path: str, size: int) -> None:
    with open(path, "ab"):
        pass
    if os.path.getsize(path) < size:
        os.truncate(path, size)
