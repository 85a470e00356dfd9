"""The capabilities of a driver, derived from the methods that it overrides."""

from __future__ import annotations

import re

from volplane.csi import v1
from volplane.csi.services import SERVICES
from volplane.sdk.driver import Driver

_Plugin = v1.PluginCapability
_Controller = v1.ControllerServiceCapability
_Group = v1.GroupControllerServiceCapability
_Node = v1.NodeServiceCapability

# Method → capability. A driver must override both methods of a pair: what it creates it must delete.
_CONTROLLER = {
    "CreateVolume": "CREATE_DELETE_VOLUME",
    "ControllerPublishVolume": "PUBLISH_UNPUBLISH_VOLUME",
    "ListVolumes": "LIST_VOLUMES",
    "GetCapacity": "GET_CAPACITY",
    "CreateSnapshot": "CREATE_DELETE_SNAPSHOT",
    "ListSnapshots": "LIST_SNAPSHOTS",
    "GetSnapshot": "GET_SNAPSHOT",
    "ControllerExpandVolume": "EXPAND_VOLUME",
    "ControllerGetVolume": "GET_VOLUME",
    "ControllerModifyVolume": "MODIFY_VOLUME",
}
_NODE = {
    "NodeStageVolume": "STAGE_UNSTAGE_VOLUME",
    "NodeGetVolumeStats": "GET_VOLUME_STATS",
    "NodeExpandVolume": "EXPAND_VOLUME",
}
_GROUP = {"CreateVolumeGroupSnapshot": "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"}
_PAIRS = (
    ("CreateVolume", "DeleteVolume"),
    ("ControllerPublishVolume", "ControllerUnpublishVolume"),
    ("CreateSnapshot", "DeleteSnapshot"),
    ("CreateVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot"),
    ("CreateVolumeGroupSnapshot", "GetVolumeGroupSnapshot"),
    ("NodeStageVolume", "NodeUnstageVolume"),
    ("NodePublishVolume", "NodeUnpublishVolume"),
)
# Capabilities of one service only; VOLUME_CONDITION and SINGLE_NODE_MULTI_WRITER belong to both.
_CONTROLLER_ONLY = frozenset({"CLONE_VOLUME", "PUBLISH_READONLY", "LIST_VOLUMES_PUBLISHED_NODES"})
_NODE_ONLY = frozenset({"VOLUME_MOUNT_GROUP"})
_BOTH = frozenset({"VOLUME_CONDITION", "SINGLE_NODE_MULTI_WRITER"})
_OTHER = frozenset({"VOLUME_ACCESSIBILITY_CONSTRAINTS", "OFFLINE"})


def snake_case(method: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()


class ServedCapabilities:
    """The methods that a driver serves, and the replies with its capabilities."""

    def __init__(self, driver: Driver) -> None:
        self.methods = frozenset(m for service in SERVICES.values() for m in service if _overrides(driver, m))
        self.extra_capabilities, self._elsewhere = driver.extra_capabilities, driver.methods_elsewhere
        self._check_overrides(type(driver).__name__)

    def _check_overrides(self, name: str) -> None:
        for one, other in _PAIRS:
            if (one in self.methods) != (other in self.methods):
                raise TypeError(
                    f"{name} overrides only one of {snake_case(one)} and {snake_case(other)}: override both"
                )
        unknown = self.extra_capabilities - _CONTROLLER_ONLY - _NODE_ONLY - _BOTH - _OTHER
        if unknown:
            raise TypeError(f"{name} declares unknown capabilities: {', '.join(sorted(unknown))}")

    def serves(self, service: str) -> bool:
        return not self.methods.isdisjoint(SERVICES[f"csi.v1.{service}"])

    @property
    def stages(self) -> bool:
        return "NodeStageVolume" in self.methods

    def plugin(self) -> v1.GetPluginCapabilitiesResponse:
        services = [
            ("Controller", "CONTROLLER_SERVICE"),
            ("GroupController", "GROUP_CONTROLLER_SERVICE"),
            ("SnapshotMetadata", "SNAPSHOT_METADATA_SERVICE"),
        ]
        # Every process returns the capabilities of the whole driver, whichever services it serves.
        everywhere = self.methods | self._elsewhere
        named = [c for service, c in services if not everywhere.isdisjoint(SERVICES[f"csi.v1.{service}"])]
        named += sorted(self.extra_capabilities & {"VOLUME_ACCESSIBILITY_CONSTRAINTS"})
        found = [_Plugin(service=_Plugin.Service(type=n)) for n in named]
        if everywhere & {"ControllerExpandVolume", "NodeExpandVolume"}:
            expansion = _Plugin.VolumeExpansion
            when = expansion.OFFLINE if "OFFLINE" in self.extra_capabilities else expansion.ONLINE
            found.append(_Plugin(volume_expansion=expansion(type=when)))
        return v1.GetPluginCapabilitiesResponse(capabilities=found)

    def controller(self) -> v1.ControllerGetCapabilitiesResponse:
        rpc = _Controller.RPC
        names = self._capability_names(_CONTROLLER, _CONTROLLER_ONLY | _BOTH)
        found = [_Controller(rpc=rpc(type=name)) for name in names]
        return v1.ControllerGetCapabilitiesResponse(capabilities=found)

    def group(self) -> v1.GroupControllerGetCapabilitiesResponse:
        rpc = _Group.RPC
        found = [_Group(rpc=rpc(type=name)) for name in self._capability_names(_GROUP, frozenset())]
        return v1.GroupControllerGetCapabilitiesResponse(capabilities=found)

    def node(self) -> v1.NodeGetCapabilitiesResponse:
        rpc = _Node.RPC
        names = self._capability_names(_NODE, _NODE_ONLY | _BOTH)
        found = [_Node(rpc=rpc(type=name)) for name in names]
        return v1.NodeGetCapabilitiesResponse(capabilities=found)

    def _capability_names(self, derived: dict[str, str], claimable: frozenset[str]) -> list[str]:
        return [c for m, c in derived.items() if m in self.methods] + sorted(
            self.extra_capabilities & claimable
        )


def _overrides(driver: Driver, method: str) -> bool:
    base = getattr(Driver, snake_case(method), None)
    return base is not None and getattr(type(driver), snake_case(method)) is not base and method != "Probe"
