"""The sample driver with all optional capabilities."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from typing import ClassVar

from tests.support.sample_driver.driver import GIB, SampleDriver, to_snapshot
from volplane.csi import v1
from volplane.host import copies
from volplane.host.mounts import read_table
from volplane.sdk import errors

LARGEST = 64 * GIB
BLOCK_SIZE = 64 << 10
MUTABLE = frozenset({"iops"})
FINE = v1.VolumeCondition(abnormal=False, message="the disk is fine")
_FREEZING = threading.Lock()
WHEN = {"seconds": 1_700_000_000}


class FullDriver(SampleDriver):
    extra_capabilities: ClassVar[frozenset[str]] = SampleDriver.extra_capabilities | {
        "LIST_VOLUMES_PUBLISHED_NODES",
        "VOLUME_CONDITION",
    }

    # --- volumes

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        self.check(request.mutable_parameters)
        self.measure(request.capacity_range.required_bytes)
        return await super().create_volume(request)

    def check(self, parameters: object) -> None:
        if unknown := set(parameters) - MUTABLE:  # type: ignore[call-overload]
            raise errors.InvalidArgument(f"{', '.join(sorted(unknown))} cannot be modified")

    def measure(self, size: int) -> None:
        if size > LARGEST:
            raise errors.OutOfRange(f"{size} bytes are more than {LARGEST}")

    async def controller_modify_volume(
        self, request: v1.ControllerModifyVolumeRequest
    ) -> v1.ControllerModifyVolumeResponse:
        self.check(request.mutable_parameters)
        note = self.get_record(request.volume_id)
        self.save_record(request.volume_id, {**note, "mutable": dict(request.mutable_parameters)})
        return v1.ControllerModifyVolumeResponse()

    async def controller_get_volume(
        self, request: v1.ControllerGetVolumeRequest
    ) -> v1.ControllerGetVolumeResponse:
        note = self.get_record(request.volume_id)
        status = v1.ControllerGetVolumeResponse.VolumeStatus(
            published_node_ids=self.nodes(request.volume_id), volume_condition=self.condition()
        )
        volume = v1.Volume(volume_id=request.volume_id, capacity_bytes=note["size"])
        return v1.ControllerGetVolumeResponse(volume=volume, status=status)

    async def list_volumes(self, request: v1.ListVolumesRequest) -> v1.ListVolumesResponse:
        reply = await super().list_volumes(request)
        for entry in reply.entries:
            entry.status.published_node_ids.extend(self.nodes(entry.volume.volume_id))
            if (condition := self.condition()) is not None:
                entry.status.volume_condition.CopyFrom(condition)
        return reply

    def nodes(self, id: str) -> list[str]:
        return list((self.find_record(id) or {}).get("nodes", []))

    def condition(self) -> v1.VolumeCondition | None:
        return FINE

    async def get_capacity(self, request: v1.GetCapacityRequest) -> v1.GetCapacityResponse:
        return v1.GetCapacityResponse(
            available_capacity=100 * GIB,
            maximum_volume_size={"value": LARGEST},
            minimum_volume_size={"value": 1},
        )

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        reply = await super().node_get_volume_stats(request)
        reply.volume_condition.CopyFrom(FINE)
        return reply

    # --- snapshots

    async def get_snapshot(self, request: v1.GetSnapshotRequest) -> v1.GetSnapshotResponse:
        return v1.GetSnapshotResponse(
            snapshot=to_snapshot(request.snapshot_id, self.get_record(request.snapshot_id))
        )

    async def create_volume_group_snapshot(
        self, request: v1.CreateVolumeGroupSnapshotRequest
    ) -> v1.CreateVolumeGroupSnapshotResponse:
        group = f"group-{hashlib.sha256(request.name.encode()).hexdigest()[:16]}"
        volumes = sorted(request.source_volume_ids)
        note = self.find_record(group)
        if note is None:
            cuts = {
                volume: f"snap-{group[6:]}-{volume[4:12]}" for volume in self.volumes_to_snapshot(volumes)
            }
            sources = {volume: self.get_record(volume) for volume in cuts}
            await self.copy_snapshots(cuts)
            for volume, snapshot in cuts.items():
                source = sources[volume]
                record = {"size": source["size"], "volume": volume, "key": source["key"], "group": group}
                record["time"] = int(time.time())
                self.save_record(snapshot, record)
            note = {"volumes": volumes, "snapshots": sorted(cuts.values())}
            self.save_record(group, note)
        if note["volumes"] != volumes:
            raise errors.AlreadyExists(f"{request.name} is of {note['volumes']}")
        return v1.CreateVolumeGroupSnapshotResponse(group_snapshot=self.group(group))

    def volumes_to_snapshot(self, volumes: list[str]) -> list[str]:
        return volumes

    async def copy_snapshots(self, cuts: dict[str, str]) -> None:
        """Copy all volumes at one point in time: freeze their file systems."""
        devices = [device for volume in cuts for device in await self.devices(volume)]
        await self.host.call(_copy_frozen, devices, [(self.image(v), self.image(s)) for v, s in cuts.items()])

    def group(self, id: str) -> v1.VolumeGroupSnapshot:
        note = self.get_record(id)
        snapshots = []
        for one in note["snapshots"]:
            made = to_snapshot(one, self.get_record(one))
            made.group_snapshot_id = id
            snapshots.append(made)
        return v1.VolumeGroupSnapshot(
            group_snapshot_id=id, snapshots=snapshots, creation_time=WHEN, ready_to_use=True
        )

    async def get_volume_group_snapshot(
        self, request: v1.GetVolumeGroupSnapshotRequest
    ) -> v1.GetVolumeGroupSnapshotResponse:
        return v1.GetVolumeGroupSnapshotResponse(group_snapshot=self.group(request.group_snapshot_id))

    async def delete_volume_group_snapshot(
        self, request: v1.DeleteVolumeGroupSnapshotRequest
    ) -> v1.DeleteVolumeGroupSnapshotResponse:
        note = self.find_record(request.group_snapshot_id)
        if note is not None:
            for one in self.snapshots_to_delete(note["snapshots"]):
                self.delete_files(one)
            self.delete_files(request.group_snapshot_id)
        return v1.DeleteVolumeGroupSnapshotResponse()

    def snapshots_to_delete(self, snapshots: list[str]) -> list[str]:
        return snapshots

    # --- their blocks

    async def get_metadata_allocated(
        self, request: v1.GetMetadataAllocatedRequest
    ) -> AsyncIterator[v1.GetMetadataAllocatedResponse]:
        size = self.get_record(request.snapshot_id)["size"]
        found = list(data_of(self.image(request.snapshot_id)))
        for page in pages(found, request.starting_offset, request.max_results, size):
            yield v1.GetMetadataAllocatedResponse(
                block_metadata_type=v1.BlockMetadataType.VARIABLE_LENGTH,
                volume_capacity_bytes=size,
                block_metadata=page,
            )

    async def get_metadata_delta(
        self, request: v1.GetMetadataDeltaRequest
    ) -> AsyncIterator[v1.GetMetadataDeltaResponse]:
        self.get_record(request.base_snapshot_id)
        size = self.get_record(request.target_snapshot_id)["size"]
        images = [self.image(id) for id in (request.base_snapshot_id, request.target_snapshot_id)]
        changed = await self.host.call(self.changed_blocks, *images)
        for page in pages(changed, request.starting_offset, request.max_results, size):
            yield v1.GetMetadataDeltaResponse(
                block_metadata_type=v1.BlockMetadataType.FIXED_LENGTH,
                volume_capacity_bytes=size,
                block_metadata=page,
            )

    def changed_blocks(self, base: str, target: str) -> list[tuple[int, int]]:
        pieces = {
            at
            for image in (base, target)
            for offset, size in data_of(image)
            for at in range(offset // BLOCK_SIZE * BLOCK_SIZE, offset + size, BLOCK_SIZE)
        }
        with open(base, "rb") as old, open(target, "rb") as new:
            return [
                (at, BLOCK_SIZE)
                for at in sorted(pieces)
                if _read_block(old.fileno(), at) != _read_block(new.fileno(), at)
            ]


def _read_block(descriptor: int, at: int) -> bytes:
    return os.pread(descriptor, BLOCK_SIZE, at)


def _copy_frozen(devices: Sequence[str], files: Sequence[tuple[str, str]]) -> None:
    mounted = {entry.source: entry.target for entry in read_table()}
    with _FREEZING, ExitStack() as still:
        for device in devices:
            if device in mounted:
                copies.thaw(mounted[device])  # a killed instance may have left it frozen
                still.enter_context(copies.freeze_filesystem(mounted[device]))
            copies.flush(device)
        for source, target in files:
            copies.copy(source, f"{target}.half")
            os.replace(f"{target}.half", target)


def data_of(path: str) -> Iterator[tuple[int, int]]:
    with open(path, "rb") as file:
        end = 0
        while True:
            try:
                start = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError:  # no more data
                return
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            yield start, end - start


def pages(
    found: list[tuple[int, int]], start: int, most: int, capacity: int
) -> Iterator[list[v1.BlockMetadata]]:
    if not 0 <= start <= capacity:
        raise errors.OutOfRange(f"{start} is beyond {capacity}")
    left = [v1.BlockMetadata(byte_offset=o, size_bytes=s) for o, s in found if o + s > start]
    step = most or 100
    for first in range(0, len(left) or 1, step):
        yield left[first : first + step]
