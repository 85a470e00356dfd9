"""Name, capabilities and node ids, on all instances and after a restart."""

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
    "All instances of one version report the same plugin capabilities.",
)
async def same_everywhere(env: SocketEnv) -> None:
    answers = []
    for instance in env.instances:
        request = v1.GetPluginCapabilitiesRequest()
        reply = await instance.channel.call("GetPluginCapabilities", request)
        answers.append((instance.name, sorted(str(one).strip() for one in reply.capabilities)))
    first, reported = answers[0]
    for other, other_names in answers[1:]:
        require(other_names == reported, f"{first} names {reported}, {other} names {other_names}")


@case("identity/probe", "Probe", "A running driver answers Probe with OK, and not with `ready: false`.")
async def probe(env: SocketEnv) -> None:
    for instance in env.instances:
        reply = await instance.channel.call("Probe", v1.ProbeRequest())
        ready = not reply.HasField("ready") or reply.ready.value
        require(ready, f"{instance.name} serves calls, and reports that it is not ready")


@case(
    "identity/node",
    "NodeGetInfo",
    "A node has a unique id of at most 256 bytes; with topology, at least one segment.",
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
            require(one.topology, f"{one.id} has no topology segment, although the plugin has topology")
    ids = [one.id for one in env.nodes]
    require(len(set(ids)) == len(ids), f"two nodes have the same id: {ids}")


@case(
    "identity/node after restart",
    "NodeGetInfo",
    "A node has the same id and topology after the driver was killed and restarted.",
)
async def node_after_restart(env: SocketEnv) -> None:
    one = env.nodes[-1]
    await one.instance.restart()
    info = await one.call("NodeGetInfo", v1.NodeGetInfoRequest())
    require(info.node_id == one.id, f"it was {one.id!r} and is {info.node_id!r} now")
    reported = dict(info.accessible_topology.segments)
    require(reported == one.topology, f"its topology was {one.topology} and is {reported} now")


@case(
    "identity/capabilities are served",
    "ControllerGetCapabilities",
    "The calls of all reported capabilities are implemented: none is UNIMPLEMENTED.",
    "controller",
)
async def capabilities_are_served(env: SocketEnv) -> None:
    """Call with empty requests, which fail for another reason than UNIMPLEMENTED."""
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
                require(
                    error.code is not Code.UNIMPLEMENTED,
                    f"{method} is UNIMPLEMENTED, although the driver has its capability",
                )
