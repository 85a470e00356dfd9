"""What a driver says of itself, everywhere and after a restart."""

from __future__ import annotations

import re

from volplane.csi import v1
from volplane.csi.outcome import CallError, Code
from volplane.testing.case import CaseTable, require
from volplane.testing.socket_env import SocketEnv

case = CaseTable()

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
LONGEST_NAME, LONGEST_NODE, LONGEST_KEY = 63, 256, 128


@case(
    "identity/name",
    "GetPluginInfo",
    "The name is a domain name of at most 63 characters: letters, digits, dots and dashes, and a letter or"
    " digit at both ends.",
)
async def name(env: SocketEnv) -> None:
    info = await env.controller.call("GetPluginInfo", v1.GetPluginInfoRequest())
    require(_NAME.fullmatch(info.name), f"the name is {info.name!r}")
    require(len(info.name) <= LONGEST_NAME, f"the name has {len(info.name)} characters: {info.name!r}")


@case(
    "identity/same everywhere",
    "GetPluginCapabilities",
    "All instances of one version name the same capabilities, whichever services they serve.",
)
async def same_everywhere(env: SocketEnv) -> None:
    answers = []
    for instance in env.instances:
        request = v1.GetPluginCapabilitiesRequest()
        reply = await instance.channel.call("GetPluginCapabilities", request)
        answers.append((instance.name, sorted(str(one).strip() for one in reply.capabilities)))
    first, told = answers[0]
    for other, heard in answers[1:]:
        require(heard == told, f"{first} names {told}, {other} names {heard}")


@case("identity/probe", "Probe", "A driver that is up says so: OK, and not `ready: false`.")
async def probe(env: SocketEnv) -> None:
    for instance in env.instances:
        reply = await instance.channel.call("Probe", v1.ProbeRequest())
        ready = not reply.HasField("ready") or reply.ready.value
        require(ready, f"{instance.name} serves, and says that it is not ready")


@case(
    "identity/node",
    "NodeGetInfo",
    "A node has an id of at most 256 bytes that is its own; with topology, at least one segment.",
)
async def node(env: SocketEnv) -> None:
    for one in env.nodes:
        require(one.id, f"{one.instance.name} has no id")
        require(
            len(one.id.encode()) <= LONGEST_NODE, f"the id {one.id!r} is longer than {LONGEST_NODE} bytes"
        )
        for key, value in one.topology.items():
            require(
                len(key.partition("/")[2] or key) <= LONGEST_NAME, f"the topology key {key!r} is too long"
            )
            require(len(value) <= LONGEST_NAME, f"the topology value {value!r} is too long")
        if env.capabilities.has("topology"):
            require(one.topology, f"{one.id} tells no segment of the topology that the plugin speaks of")
    ids = [one.id for one in env.nodes]
    require(len(set(ids)) == len(ids), f"two nodes have one id: {ids}")


@case(
    "identity/node after restart",
    "NodeGetInfo",
    "A node is the same after the driver was killed and started.",
)
async def node_after_restart(env: SocketEnv) -> None:
    one = env.nodes[-1]
    await one.instance.restart()
    info = await one.call("NodeGetInfo", v1.NodeGetInfoRequest())
    require(info.node_id == one.id, f"it was {one.id!r} and is {info.node_id!r} now")
    told = dict(info.accessible_topology.segments)
    require(told == one.topology, f"its topology was {one.topology} and is {told} now")


@case(
    "identity/capabilities are served",
    "ControllerGetCapabilities",
    "Whoever names a capability implements its calls: none of them is UNIMPLEMENTED.",
    "controller",
)
async def capabilities_are_served(env: SocketEnv) -> None:
    """Asked with empty requests, which a driver refuses for another reason than not knowing the call."""
    for need, method, request in (
        ("create", "CreateVolume", v1.CreateVolumeRequest()),
        ("create", "DeleteVolume", v1.DeleteVolumeRequest()),
        ("attach", "ControllerPublishVolume", v1.ControllerPublishVolumeRequest()),
        ("attach", "ControllerUnpublishVolume", v1.ControllerUnpublishVolumeRequest()),
        ("list", "ListVolumes", v1.ListVolumesRequest()),
        ("capacity", "GetCapacity", v1.GetCapacityRequest()),
        ("snapshot", "CreateSnapshot", v1.CreateSnapshotRequest()),
        ("snapshot", "DeleteSnapshot", v1.DeleteSnapshotRequest()),
        ("list-snapshots", "ListSnapshots", v1.ListSnapshotsRequest()),
        ("expand-controller", "ControllerExpandVolume", v1.ControllerExpandVolumeRequest()),
        ("get", "ControllerGetVolume", v1.ControllerGetVolumeRequest()),
        ("modify", "ControllerModifyVolume", v1.ControllerModifyVolumeRequest()),
        ("get-snapshot", "GetSnapshot", v1.GetSnapshotRequest()),
        ("group-snapshot", "CreateVolumeGroupSnapshot", v1.CreateVolumeGroupSnapshotRequest()),
        ("group-snapshot", "DeleteVolumeGroupSnapshot", v1.DeleteVolumeGroupSnapshotRequest()),
        ("group-snapshot", "GetVolumeGroupSnapshot", v1.GetVolumeGroupSnapshotRequest()),
        ("metadata", "GetMetadataAllocated", v1.GetMetadataAllocatedRequest()),
        ("metadata", "GetMetadataDelta", v1.GetMetadataDeltaRequest()),
    ):
        if env.capabilities.has(need):
            try:
                await env.controller.call_once(method, request)
            except CallError as error:
                require(error.code is not Code.UNIMPLEMENTED, f"{method} is promised and UNIMPLEMENTED")
