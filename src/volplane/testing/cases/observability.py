"""Lists, conditions, capacity and limits while volumes are used."""

from __future__ import annotations

from volplane.csi import convert, v1
from volplane.csi.outcome import Code
from volplane.testing.case import CaseTable, NotSupported, require
from volplane.testing.cases import snapshots_clones
from volplane.testing.cases.controller import read_available_capacity
from volplane.testing.cases.expand import expand_in_controller
from volplane.testing.cases.node import stats_are_plausible
from volplane.testing.cases.snapshots_clones import snapshot
from volplane.testing.socket_env import Mode, SocketEnv

case = CaseTable()

ELSEWHERE = "volplane-no-such-place"
LARGEST = 1 << 60  # bytes; larger sizes are not plausible


# --- volumes


async def find_entry(env: SocketEnv, id: str) -> v1.ListVolumesResponse.Entry:
    """The volume's entry in ListVolumes."""
    token = ""
    while True:
        reply = await env.controller.call("ListVolumes", v1.ListVolumesRequest(starting_token=token))
        for entry in reply.entries:
            if entry.volume.volume_id == id:
                found: v1.ListVolumesResponse.Entry = entry
                return found
        token = reply.next_token
        require(token, f"{id} exists, and is not listed")


@case(
    "list/published nodes",
    "ListVolumes",
    "An attached volume is listed with its nodes.",
    "list",
    "published-nodes",
    "attach",
    "create",
)
async def published_nodes(env: SocketEnv) -> None:
    volume, node = await env.create(), env.nodes[0]
    await volume.attach(node)
    got = list((await find_entry(env, volume.id)).status.published_node_ids)
    require(node.id in got, f"{volume.id} is attached to {node.id}, listed with {got}")
    if env.capabilities.has("get"):
        request = v1.ControllerGetVolumeRequest(volume_id=volume.id)
        reply = await env.controller.call("ControllerGetVolume", request)
        got = list(reply.status.published_node_ids)
        require(
            node.id in got,
            f"{volume.id} is attached to {node.id}, returned with {got}",
            section="ControllerGetVolume",
        )


def _expect_healthy(condition: v1.VolumeCondition, who: str, section: str) -> None:
    require(
        not condition.abnormal,
        f"{who}: the volume is healthy, reported is {condition.message!r}",
        section=section,
    )
    require(condition.message, f"{who}: the condition has no message, which is required", section=section)


@case(
    "list/condition",
    "ListVolumes",
    "With VOLUME_CONDITION each listed volume has its condition.",
    "list",
    "condition-controller",
    "create",
)
async def list_condition(env: SocketEnv) -> None:
    volume = await env.create()
    status = (await find_entry(env, volume.id)).status
    require(status.HasField("volume_condition"), f"{volume.id} is listed without its condition")
    _expect_healthy(status.volume_condition, "ListVolumes", "ListVolumes")


@case(
    "get/condition",
    "ControllerGetVolume",
    "With VOLUME_CONDITION the volume has its condition.",
    "get",
    "condition-controller",
    "create",
)
async def get_condition(env: SocketEnv) -> None:
    volume = await env.create()
    request = v1.ControllerGetVolumeRequest(volume_id=volume.id)
    reply = await env.controller.call("ControllerGetVolume", request)
    require(reply.status.HasField("volume_condition"), f"{volume.id} is returned without its condition")
    _expect_healthy(reply.status.volume_condition, "ControllerGetVolume", "ControllerGetVolume")


@case(
    "stats/condition",
    "NodeGetVolumeStats",
    "With VOLUME_CONDITION the node reports the volume's condition.",
    "condition",
    "stats",
    "create",
)
async def node_condition(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    reply = await stats_are_plausible(node, volume, volume.target(node))
    require(reply.HasField("volume_condition"), f"{volume.id} is returned without its condition")
    _expect_healthy(reply.volume_condition, "NodeGetVolumeStats", "NodeGetVolumeStats")


@case(
    "get/after it has grown",
    "ControllerGetVolume",
    "ControllerGetVolume returns the current state: the new size, and NOT_FOUND after the deletion.",
    "get",
    "expand-controller",
    "create",
)
async def get_expanded(env: SocketEnv) -> None:
    volume = await env.create()
    request = v1.ControllerGetVolumeRequest(volume_id=volume.id)
    await expand_in_controller(env, volume, 2 * env.size)
    got = (await env.controller.call("ControllerGetVolume", request)).volume.capacity_bytes
    require(
        not got or got >= 2 * env.size, f"expanded to {2 * env.size} bytes, returned is {got}"
    )  # 0: not known
    await volume.delete()
    await env.expect_error(
        (Code.NOT_FOUND,), env.controller, "ControllerGetVolume", request, "of a volume that is deleted"
    )


# --- snapshots


@case(
    "snapshot/pages",
    "ListSnapshots",
    "Every snapshot is listed once, on one page or on many; deleted ones are not listed.",
    "snapshot",
    "list-snapshots",
    "create",
)
async def snapshot_pages(env: SocketEnv) -> None:
    ids = [(await snapshot(env, await env.create())).snapshot_id for _ in range(3)]
    for most in (0, 1, 2):
        found = await snapshots_clones.list_all_snapshots(env, most)
        missing = [one for one in ids if found.count(one) != 1]
        require(not missing, f"with {most or 'all'} a page: {missing} not once in {found}")
    request = v1.DeleteSnapshotRequest(snapshot_id=ids[0], secrets=env.secrets)
    await env.controller.call("DeleteSnapshot", request)
    require(
        ids[0] not in await snapshots_clones.list_all_snapshots(env),
        f"{ids[0]} is deleted and still listed",
    )


@case(
    "snapshot/invalid token",
    "ListSnapshots Errors",
    "An invalid token is ABORTED.",
    "list-snapshots",
)
async def snapshot_token(env: SocketEnv) -> None:
    request = v1.ListSnapshotsRequest(starting_token="volplane-no-such-token", secrets=env.secrets)
    await env.expect_error(
        (Code.ABORTED,), env.controller, "ListSnapshots", request, "with a token that is none"
    )


@case(
    "snapshot/get",
    "GetSnapshot",
    "A snapshot is found by its id; an unknown one is NOT_FOUND.",
    "snapshot",
    "get-snapshot",
    "create",
)
async def get_snapshot(env: SocketEnv) -> None:
    made = await snapshot(env, await env.create())
    request = v1.GetSnapshotRequest(snapshot_id=made.snapshot_id, secrets=env.secrets)
    got = (await env.controller.call("GetSnapshot", request)).snapshot
    require(
        (got.snapshot_id, got.source_volume_id) == (made.snapshot_id, made.source_volume_id),
        f"requested {made.snapshot_id} of {made.source_volume_id}, got {got.snapshot_id!r} of"
        f" {got.source_volume_id!r}",
    )
    unknown = v1.GetSnapshotRequest(snapshot_id="volplane-no-such-snapshot", secrets=env.secrets)
    await env.expect_error(
        (Code.NOT_FOUND,), env.controller, "GetSnapshot", unknown, "of an unknown snapshot"
    )


# --- capacity


@case(
    "capacity/largest volume",
    "GetCapacity",
    "A volume larger than `maximum_volume_size` is OUT_OF_RANGE. Neither limit is negative.",
    "capacity",
    "create",
)
async def largest(env: SocketEnv) -> None:
    reply = await read_available_capacity(env)
    for bound in ("maximum_volume_size", "minimum_volume_size"):
        require(getattr(reply, bound).value >= 0, f"{bound} is {getattr(reply, bound).value}")
    most = reply.maximum_volume_size.value
    if not reply.HasField("maximum_volume_size") or most >= LARGEST:
        raise NotSupported("GetCapacity reports no maximum_volume_size")
    wanted = env.create_request(env.new_name(), size=most + 1)
    # If the largest volume uses all capacity, both errors are right.
    all_of_it = most >= reply.available_capacity
    await env.expect_error(
        (Code.OUT_OF_RANGE, Code.RESOURCE_EXHAUSTED) if all_of_it else (Code.OUT_OF_RANGE,),
        env.controller,
        "CreateVolume",
        wanted,
        f"with {most + 1} of at most {most} bytes",
    )


@case(
    "provision/unknown topology",
    "CreateVolume Errors",
    "A volume with an unknown required topology is RESOURCE_EXHAUSTED.",
    "create",
    "topology",
)
async def nowhere(env: SocketEnv) -> None:
    if not env.nodes[0].topology:
        raise NotSupported("its nodes tell no topology")
    place = convert.topology(dict.fromkeys(env.nodes[0].topology, ELSEWHERE))
    request = env.create_request(env.new_name())
    request.accessibility_requirements.CopyFrom(v1.TopologyRequirement(requisite=[place], preferred=[place]))
    # An unknown topology may also be an invalid argument.
    codes = (Code.RESOURCE_EXHAUSTED, Code.INVALID_ARGUMENT)
    await env.expect_error(codes, env.controller, "CreateVolume", request, "for a place that is not there")


@case(
    "identity/limit",
    "NodeGetInfo",
    "The attach limit of a node is not negative; 0 means no limit.",
)
async def limit(env: SocketEnv) -> None:
    for node in env.nodes:
        require(node.most >= 0, f"{node.id} has the limit {node.most}")


# --- writers


@case(
    "publish/several writers",
    "NodePublishVolume",
    "A volume for several writers on one node can be published for each of them, with the same data.",
    "single-writer",
    "create",
)
async def several(env: SocketEnv) -> None:
    capability = convert.capability(Mode.SINGLE_NODE_MULTI_WRITER)
    volume, node = await env.create_and_publish(capability=capability), env.nodes[0]
    second = await volume.publish(node, "b")
    written = env.random_data()
    await volume.write(second, written)
    await env.expect_data(volume, volume.target(node), written, "at the first target, written at the second")


@case(
    "publish/the next pod",
    "NodePublishVolume",
    "A single-writer volume can be published at the next target after it was unpublished.",
    "single-writer",
    "create",
)
async def next_pod(env: SocketEnv) -> None:
    capability = convert.capability(Mode.SINGLE_NODE_SINGLE_WRITER)
    (volume, written), node = await env.create_with_data(capability=capability), env.nodes[0]
    await volume.unpublish(node)
    await env.expect_data(
        volume, await volume.publish(node, "b"), written, "for the pod that came after the first"
    )
