"""GroupController and SnapshotMetadata: services that exist because their methods are overridden."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from volplane.csi import v1
from volplane.csi.client import CsiChannel
from volplane.csi.outcome import CallError, Code
from volplane.csi.services import SERVICES
from volplane.sdk import Driver, DriverServer, Local, errors
from volplane.sdk.capabilities import ServedCapabilities, snake_case

BLOCK = 4096


class Groups(Driver):
    """Group snapshots, and what has changed between two of them, all in memory."""

    name, version = "groups.example.com", "1.0"

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, v1.VolumeGroupSnapshot] = {}
        self.left = False

    async def create_volume_group_snapshot(
        self, request: v1.CreateVolumeGroupSnapshotRequest
    ) -> v1.CreateVolumeGroupSnapshotResponse:
        members = [
            v1.Snapshot(snapshot_id=f"{request.name}/{v}", source_volume_id=v, ready_to_use=True)
            for v in request.source_volume_ids
        ]
        made = v1.VolumeGroupSnapshot(group_snapshot_id=request.name, snapshots=members, ready_to_use=True)
        return v1.CreateVolumeGroupSnapshotResponse(group_snapshot=self.groups.setdefault(request.name, made))

    async def delete_volume_group_snapshot(
        self, request: v1.DeleteVolumeGroupSnapshotRequest
    ) -> v1.DeleteVolumeGroupSnapshotResponse:
        self.groups.pop(request.group_snapshot_id, None)
        return v1.DeleteVolumeGroupSnapshotResponse()

    async def get_volume_group_snapshot(
        self, request: v1.GetVolumeGroupSnapshotRequest
    ) -> v1.GetVolumeGroupSnapshotResponse:
        if request.group_snapshot_id not in self.groups:
            raise errors.NotFound("no such group")
        return v1.GetVolumeGroupSnapshotResponse(group_snapshot=self.groups[request.group_snapshot_id])

    async def get_metadata_allocated(
        self, request: v1.GetMetadataAllocatedRequest
    ) -> AsyncIterator[v1.GetMetadataAllocatedResponse]:
        if request.snapshot_id == "broken":
            raise OSError("the disk is on fire")
        try:
            for start in range(request.starting_offset, 5 * BLOCK, BLOCK):
                block = v1.BlockMetadata(byte_offset=start, size_bytes=BLOCK)
                yield v1.GetMetadataAllocatedResponse(
                    block_metadata_type=v1.FIXED_LENGTH,
                    volume_capacity_bytes=5 * BLOCK,
                    block_metadata=[block],
                )
        finally:
            self.left = True

    async def get_metadata_delta(
        self, request: v1.GetMetadataDeltaRequest
    ) -> AsyncIterator[v1.GetMetadataDeltaResponse]:
        if request.starting_offset > 5 * BLOCK:
            raise errors.OutOfRange("behind the end")
        yield v1.GetMetadataDeltaResponse(volume_capacity_bytes=5 * BLOCK)


def test_every_call_of_csi_can_be_overridden() -> None:
    derived = {
        "GetPluginInfo",
        "GetPluginCapabilities",
        "ControllerGetCapabilities",
        "GroupControllerGetCapabilities",
        "NodeGetCapabilities",
    }
    for service, methods in SERVICES.items():
        if service.startswith("csi.v1."):
            for method in methods.keys() - derived:
                assert callable(getattr(Driver, snake_case(method))), f"{service}/{method}"


def test_the_services_are_named() -> None:
    service = v1.PluginCapability.Service
    types = [c.service.type for c in ServedCapabilities(Groups()).plugin().capabilities]
    assert types == [service.GROUP_CONTROLLER_SERVICE, service.SNAPSHOT_METADATA_SERVICE]
    (only,) = ServedCapabilities(Groups()).group().capabilities
    assert only.rpc.type == v1.GroupControllerServiceCapability.RPC.CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT


def test_groups_that_nobody_can_look_at_are_refused() -> None:
    class Half(Driver):
        create_volume_group_snapshot = Groups.create_volume_group_snapshot
        delete_volume_group_snapshot = Groups.delete_volume_group_snapshot

    with pytest.raises(TypeError, match="get_volume_group_snapshot"):
        ServedCapabilities(Half())


async def test_groups_over_a_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "csi.sock")
    async with DriverServer(Groups(), path), CsiChannel(path) as channel:
        request = v1.CreateVolumeGroupSnapshotRequest(name="g", source_volume_ids=["a", "b"])
        made = (await channel.call("CreateVolumeGroupSnapshot", request)).group_snapshot
        assert [s.source_volume_id for s in made.snapshots] == ["a", "b"]
        get = v1.GetVolumeGroupSnapshotRequest(group_snapshot_id="g", snapshot_ids=["g/a", "g/b"])
        assert (await channel.call("GetVolumeGroupSnapshot", get)).group_snapshot == made
        delete = v1.DeleteVolumeGroupSnapshotRequest(group_snapshot_id="g")
        await channel.call("DeleteVolumeGroupSnapshot", delete)
        with pytest.raises(CallError) as caught:
            await channel.call("GetVolumeGroupSnapshot", get)
        assert caught.value.code is Code.NOT_FOUND
        empty = v1.CreateVolumeGroupSnapshotRequest(name="h")
        with pytest.raises(CallError, match="source_volume_ids is missing"):
            await channel.call("CreateVolumeGroupSnapshot", empty)


@pytest.mark.parametrize("way", ["socket", "memory"])
async def test_changed_blocks_are_streamed(tmp_path: Path, way: str) -> None:
    driver, path = Groups(), str(tmp_path / "csi.sock")
    async with DriverServer(driver, path), CsiChannel(path) as channel:
        caller = channel if way == "socket" else Local(driver)
        request = v1.GetMetadataAllocatedRequest(snapshot_id="s", starting_offset=BLOCK)
        found = [r async for r in caller.stream("GetMetadataAllocated", request)]
        assert [r.block_metadata[0].byte_offset for r in found] == [BLOCK * n for n in range(1, 5)]
        for wrong, code in [
            (v1.GetMetadataAllocatedRequest(), Code.INVALID_ARGUMENT),
            (v1.GetMetadataAllocatedRequest(snapshot_id="s", starting_offset=-1), Code.INVALID_ARGUMENT),
            (v1.GetMetadataAllocatedRequest(snapshot_id="broken"), Code.INTERNAL),
        ]:
            with pytest.raises(CallError) as caught:
                [r async for r in caller.stream("GetMetadataAllocated", wrong)]
            assert caught.value.code is code
        far = v1.GetMetadataDeltaRequest(
            base_snapshot_id="a", target_snapshot_id="b", starting_offset=9 * BLOCK
        )
        with pytest.raises(CallError) as caught:
            [r async for r in caller.stream("GetMetadataDelta", far)]
        assert caught.value.code is Code.OUT_OF_RANGE


async def test_a_caller_that_leaves_ends_the_stream() -> None:
    driver = Groups()
    replies = Local(driver).stream("GetMetadataAllocated", v1.GetMetadataAllocatedRequest(snapshot_id="s"))
    async for _ in replies:
        break
    await replies.aclose()
    assert driver.left


async def test_a_service_that_is_not_offered() -> None:
    request = v1.GetMetadataAllocatedRequest(snapshot_id="s")
    with pytest.raises(CallError) as caught:
        [r async for r in Local(Driver("x", "1")).stream("GetMetadataAllocated", request)]
    assert caught.value.code is Code.UNIMPLEMENTED
