"""What a driver offers follows from what it overrides."""

from __future__ import annotations

from typing import ClassVar

import pytest

from volplane.csi import v1
from volplane.sdk import Driver
from volplane.sdk.capabilities import ServedCapabilities


class Disks(Driver):
    name, version = "disks.example.com", "1.2"
    extra_capabilities: ClassVar[frozenset[str]] = frozenset(
        {"LIST_VOLUMES_PUBLISHED_NODES", "VOLUME_ACCESSIBILITY_CONSTRAINTS"}
    )

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        return v1.CreateVolumeResponse()

    async def delete_volume(self, request: v1.DeleteVolumeRequest) -> v1.DeleteVolumeResponse:
        return v1.DeleteVolumeResponse()

    async def list_volumes(self, request: v1.ListVolumesRequest) -> v1.ListVolumesResponse:
        return v1.ListVolumesResponse()

    async def controller_expand_volume(
        self, request: v1.ControllerExpandVolumeRequest
    ) -> v1.ControllerExpandVolumeResponse:
        return v1.ControllerExpandVolumeResponse()


def test_capabilities_follow_the_overridden_methods() -> None:
    offer = ServedCapabilities(Disks())
    rpc = v1.ControllerServiceCapability.RPC
    assert [c.rpc.type for c in offer.controller().capabilities] == [
        rpc.CREATE_DELETE_VOLUME,
        rpc.LIST_VOLUMES,
        rpc.EXPAND_VOLUME,
        rpc.LIST_VOLUMES_PUBLISHED_NODES,
    ]
    service = v1.PluginCapability.Service
    plugin = offer.plugin().capabilities
    assert [c.service.type for c in plugin if c.HasField("service")] == [
        service.CONTROLLER_SERVICE,
        service.VOLUME_ACCESSIBILITY_CONSTRAINTS,
    ]
    assert plugin[-1].volume_expansion.type == v1.PluginCapability.VolumeExpansion.ONLINE
    assert not offer.serves("Node")
    assert not offer.stages


def test_every_instance_speaks_for_the_whole_driver() -> None:
    class OnNodes(Driver):
        extra_capabilities = Disks.extra_capabilities & {"VOLUME_ACCESSIBILITY_CONSTRAINTS"}
        methods_elsewhere = frozenset({"CreateVolume", "ControllerExpandVolume"})

    offer = ServedCapabilities(OnNodes())
    assert offer.plugin() == ServedCapabilities(Disks()).plugin()
    assert not offer.serves("Controller")
    assert not offer.methods


def test_a_driver_that_cannot_delete_what_it_creates_is_refused() -> None:
    class Leaky(Driver):
        async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
            return v1.CreateVolumeResponse()

    with pytest.raises(TypeError, match="create_volume and delete_volume"):
        ServedCapabilities(Leaky())


def test_a_claim_that_csi_does_not_know_is_refused() -> None:
    class Boasting(Driver):
        extra_capabilities: ClassVar[frozenset[str]] = frozenset({"TELEPORT"})

    with pytest.raises(TypeError, match="TELEPORT"):
        ServedCapabilities(Boasting())
