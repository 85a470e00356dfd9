"""The base class of drivers: a driver serves the methods that it overrides.

Capabilities, checks of arguments, locks, logs and shutdown are handled around these methods. A method may run
longer than its caller waits; then the next equal call waits for it and gets its reply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

from volplane.csi import v1
from volplane.sdk.errors import Unimplemented


class Driver:
    """Methods have the names of the calls in snake case. `start` and `stop` run before and after serving."""

    name: str = ""  # "ebs.csi.aws.com"
    version: str = "0.0.0"
    # Capabilities that do not follow from overridden methods: CLONE_VOLUME, PUBLISH_READONLY,
    # LIST_VOLUMES_PUBLISHED_NODES, VOLUME_CONDITION, SINGLE_NODE_MULTI_WRITER, VOLUME_MOUNT_GROUP,
    # VOLUME_ACCESSIBILITY_CONSTRAINTS, and OFFLINE for a driver that expands only unpublished volumes.
    extra_capabilities: ClassVar[frozenset[str]] = frozenset()

    # Methods that other processes of this driver serve. If controller and node are different classes, each of
    # them must still return the capabilities of the whole driver.
    methods_elsewhere: ClassVar[frozenset[str]] = frozenset()

    # Refuse requests with paths that are not below this directory, such as "/var/lib/kubelet". "" allows all
    # paths.
    kubelet_root: str = ""

    def __init__(self, name: str = "", version: str = "") -> None:
        self.name, self.version = name or self.name, version or self.version

    async def start(self) -> None:
        """Run before the first call."""

    async def stop(self) -> None:
        """Run after the last call."""

    async def probe(self) -> bool:
        """Whether the driver is ready; raise FailedPrecondition if it can never be."""
        return True

    # Controller

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        raise Unimplemented("CreateVolume is not offered")

    async def delete_volume(self, request: v1.DeleteVolumeRequest) -> v1.DeleteVolumeResponse:
        raise Unimplemented("DeleteVolume is not offered")

    async def controller_publish_volume(
        self, request: v1.ControllerPublishVolumeRequest
    ) -> v1.ControllerPublishVolumeResponse:
        raise Unimplemented("ControllerPublishVolume is not offered")

    async def controller_unpublish_volume(
        self, request: v1.ControllerUnpublishVolumeRequest
    ) -> v1.ControllerUnpublishVolumeResponse:
        raise Unimplemented("ControllerUnpublishVolume is not offered")

    async def validate_volume_capabilities(
        self, request: v1.ValidateVolumeCapabilitiesRequest
    ) -> v1.ValidateVolumeCapabilitiesResponse:
        raise Unimplemented("ValidateVolumeCapabilities is not offered")

    async def list_volumes(self, request: v1.ListVolumesRequest) -> v1.ListVolumesResponse:
        raise Unimplemented("ListVolumes is not offered")

    async def get_capacity(self, request: v1.GetCapacityRequest) -> v1.GetCapacityResponse:
        raise Unimplemented("GetCapacity is not offered")

    async def controller_expand_volume(
        self, request: v1.ControllerExpandVolumeRequest
    ) -> v1.ControllerExpandVolumeResponse:
        raise Unimplemented("ControllerExpandVolume is not offered")

    async def controller_get_volume(
        self, request: v1.ControllerGetVolumeRequest
    ) -> v1.ControllerGetVolumeResponse:
        raise Unimplemented("ControllerGetVolume is not offered")

    async def controller_modify_volume(
        self, request: v1.ControllerModifyVolumeRequest
    ) -> v1.ControllerModifyVolumeResponse:
        raise Unimplemented("ControllerModifyVolume is not offered")

    async def create_snapshot(self, request: v1.CreateSnapshotRequest) -> v1.CreateSnapshotResponse:
        raise Unimplemented("CreateSnapshot is not offered")

    async def delete_snapshot(self, request: v1.DeleteSnapshotRequest) -> v1.DeleteSnapshotResponse:
        raise Unimplemented("DeleteSnapshot is not offered")

    async def list_snapshots(self, request: v1.ListSnapshotsRequest) -> v1.ListSnapshotsResponse:
        raise Unimplemented("ListSnapshots is not offered")

    async def get_snapshot(self, request: v1.GetSnapshotRequest) -> v1.GetSnapshotResponse:
        raise Unimplemented("GetSnapshot is not offered")

    # GroupController

    async def create_volume_group_snapshot(
        self, request: v1.CreateVolumeGroupSnapshotRequest
    ) -> v1.CreateVolumeGroupSnapshotResponse:
        raise Unimplemented("CreateVolumeGroupSnapshot is not offered")

    async def delete_volume_group_snapshot(
        self, request: v1.DeleteVolumeGroupSnapshotRequest
    ) -> v1.DeleteVolumeGroupSnapshotResponse:
        raise Unimplemented("DeleteVolumeGroupSnapshot is not offered")

    async def get_volume_group_snapshot(
        self, request: v1.GetVolumeGroupSnapshotRequest
    ) -> v1.GetVolumeGroupSnapshotResponse:
        raise Unimplemented("GetVolumeGroupSnapshot is not offered")

    # Node

    async def node_stage_volume(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        raise Unimplemented("NodeStageVolume is not offered")

    async def node_unstage_volume(self, request: v1.NodeUnstageVolumeRequest) -> v1.NodeUnstageVolumeResponse:
        raise Unimplemented("NodeUnstageVolume is not offered")

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        raise Unimplemented("NodePublishVolume is not offered")

    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        raise Unimplemented("NodeUnpublishVolume is not offered")

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        raise Unimplemented("NodeGetVolumeStats is not offered")

    async def node_expand_volume(self, request: v1.NodeExpandVolumeRequest) -> v1.NodeExpandVolumeResponse:
        raise Unimplemented("NodeExpandVolume is not offered")

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        raise Unimplemented("NodeGetInfo is not offered")

    # SnapshotMetadata: generators

    def get_metadata_allocated(
        self, request: v1.GetMetadataAllocatedRequest
    ) -> AsyncIterator[v1.GetMetadataAllocatedResponse]:
        raise Unimplemented("GetMetadataAllocated is not offered")

    def get_metadata_delta(
        self, request: v1.GetMetadataDeltaRequest
    ) -> AsyncIterator[v1.GetMetadataDeltaResponse]:
        raise Unimplemented("GetMetadataDelta is not offered")
