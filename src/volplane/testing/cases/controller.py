"""The controller service: create, validate, list, get and delete volumes."""

from __future__ import annotations

from volplane.csi import convert, v1
from volplane.csi.convert import ROX, RWO, RWOP, RWX
from volplane.csi.outcome import CallError, Code
from volplane.testing.case import CaseBody, CaseFailure, CaseTable, require
from volplane.testing.socket_env import BLOCK, WRITER, SocketEnv, describe_capability
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

UNKNOWN = "volplane-no-such-volume"


def _provision_with(mode: str, block: bool) -> CaseBody:
    async def body(env: SocketEnv) -> None:
        precise = env.capabilities.has("single-writer")
        capability = convert.capability(convert.access_mode(mode, multi_writer=precise), block=block)
        # A driver may reject this mode: that is not a failure.
        wanted = v1.VolumeCapability.FromString(capability.SerializeToString())
        volume = await env.create(capability=wanted)
        require(volume.id, "CreateVolume returned OK without a volume id")
        path, data = await volume.attach_stage_publish(env.nodes[0]), env.random_data()
        if mode != ROX:
            await volume.write(path, data)
            await env.expect_data(volume, path, data, f"on a {describe_capability(capability)} volume")

    return body


for _mode in (RWO, RWOP, RWX, ROX):
    for _block in (False, True):
        case.add(
            f"provision/{_mode} {'block' if _block else 'filesystem'}",
            "CreateVolume",
            "A volume with this access mode can be created and used, or the request is INVALID_ARGUMENT.",
            _provision_with(_mode, _block),
            "provision",
        )


@case(
    "provision/capacity",
    "CreateVolume",
    "The volume has at least the required bytes and at most the limit; the reported of"
    " its size is what the node finds.",
    "create",
)
async def capacity(env: SocketEnv) -> None:
    volume = VolumeUnderTest(env, env.create_request(env.new_name()), WRITER)
    volume.request.capacity_range.limit_bytes = 2 * env.size
    env.volumes.append(volume)
    made = await volume.create()
    if made.capacity_bytes:  # 0: not known
        require(
            env.size <= made.capacity_bytes <= 2 * env.size,
            f"{env.size} to {2 * env.size} bytes are required, the volume has {made.capacity_bytes}",
        )
    path = await volume.attach_stage_publish(env.nodes[0])
    found = (await env.host.stats(path)).capacity
    # A file system uses some of its device for metadata: less than a tenth and 64 MiB.
    least = env.size * 9 // 10 - (64 << 20)
    require(found >= least, f"{env.size} bytes are required, its file system has {found}")


@case(
    "provision/block capacity",
    "CreateVolume",
    "A raw device has at least the required bytes.",
    "create",
)
async def block_capacity(env: SocketEnv) -> None:
    volume = await env.create_and_publish(capability=BLOCK)
    found = await env.host.size_of(volume.target(env.nodes[0]))
    said = volume.made.capacity_bytes or env.size
    require(found >= env.size, f"{env.size} bytes are required, the device has {found}")
    require(found >= said, f"CreateVolume reports {said} bytes, the device has {found}")


@case(
    "provision/same name, other size",
    "CreateVolume Errors",
    "A name that exists with incompatible arguments is ALREADY_EXISTS.",
    "create",
)
async def same_name(env: SocketEnv) -> None:
    volume = await env.create()
    other = env.create_request(volume.request.name, size=4 * env.size)
    await env.expect_error(
        (Code.ALREADY_EXISTS,), env.controller, "CreateVolume", other, "with a used name and another size"
    )


@case(
    "provision/without a name",
    "Error Scheme",
    "A missing required field is INVALID_ARGUMENT.",
    "create",
)
async def without_name(env: SocketEnv) -> None:
    code = (Code.INVALID_ARGUMENT,)
    await env.expect_error(code, env.controller, "CreateVolume", env.create_request(""), "without a name")
    empty = env.create_request(env.new_name())
    del empty.volume_capabilities[:]
    await env.expect_error(code, env.controller, "CreateVolume", empty, "without capabilities")


@case(
    "provision/unknown snapshot",
    "CreateVolume Errors",
    "A source that does not exist is NOT_FOUND.",
    "create",
    "snapshot",
)
async def unknown_snapshot(env: SocketEnv) -> None:
    source = v1.VolumeContentSource(snapshot={"snapshot_id": "volplane-no-such-snapshot"})
    request = env.create_request(env.new_name(), source=source)
    await env.expect_error(
        (Code.NOT_FOUND,), env.controller, "CreateVolume", request, "from an unknown snapshot"
    )


@case(
    "provision/topology",
    "CreateVolume",
    "The volume is accessible from the required topology.",
    "create",
    "topology",
)
async def topology(env: SocketEnv) -> None:
    for node in env.nodes:
        if not node.topology or env.controller.topology not in ({}, node.topology):
            continue  # an instance that creates volumes for its own node only
        volume = await env.create(node=node)
        places = [dict(place.segments) for place in volume.made.accessible_topology]
        held = not places or any(place.items() <= node.topology.items() for place in places)
        require(held, f"{node.topology} is required, the volume is accessible from {places}")


@case("delete/unknown volume", "DeleteVolume", "Deleting what does not exist is OK.", "create")
async def delete_unknown(env: SocketEnv) -> None:
    request = v1.DeleteVolumeRequest(volume_id=UNKNOWN, secrets=env.secrets)
    await env.controller.call("DeleteVolume", request)


@case("delete/without an id", "Error Scheme", "A missing required field is INVALID_ARGUMENT.", "create")
async def delete_without_id(env: SocketEnv) -> None:
    request = v1.DeleteVolumeRequest(secrets=env.secrets)
    await env.expect_error((Code.INVALID_ARGUMENT,), env.controller, "DeleteVolume", request, "without an id")


@case(
    "validate/what was made",
    "ValidateVolumeCapabilities",
    "The capabilities with which a volume was created are confirmed.",
    "controller",
    "create",
)
async def validate(env: SocketEnv) -> None:
    volume = await env.create()
    request = v1.ValidateVolumeCapabilitiesRequest(
        volume_id=volume.id,
        volume_context=volume.made.volume_context,
        volume_capabilities=[volume.capability],
        parameters=env.parameters,
        secrets=env.secrets,
    )
    reply = await env.controller.call("ValidateVolumeCapabilities", request)
    require(reply.HasField("confirmed"), f"not confirmed: {reply.message!r}")


@case(
    "validate/unknown volume",
    "ValidateVolumeCapabilities Errors",
    "A volume that does not exist is NOT_FOUND.",
    "controller",
)
async def validate_unknown(env: SocketEnv) -> None:
    request = v1.ValidateVolumeCapabilitiesRequest(
        volume_id=UNKNOWN, volume_capabilities=[WRITER], secrets=env.secrets
    )
    await env.expect_error(
        (Code.NOT_FOUND,), env.controller, "ValidateVolumeCapabilities", request, "of an unknown volume"
    )


async def list_all_volumes(env: SocketEnv, most: int = 0) -> list[str]:
    """List the ids of all volumes, page by page."""
    found: list[str] = []
    token = ""
    while True:
        request = v1.ListVolumesRequest(max_entries=most, starting_token=token)
        reply = await env.controller.call("ListVolumes", request)
        found += [entry.volume.volume_id for entry in reply.entries]
        if most and len(reply.entries) > most:
            raise CaseFailure(f"ListVolumes with max_entries {most} returned {len(reply.entries)} entries")
        token = reply.next_token
        if not token:
            return found


@case(
    "list/volumes",
    "ListVolumes",
    "Every volume is listed once, on one page or on many; deleted ones are not listed.",
    "list",
    "create",
)
async def lists(env: SocketEnv) -> None:
    made = [await env.create() for _ in range(3)]
    ids = [volume.id for volume in made]
    for most in (0, 1, 2):
        found = await list_all_volumes(env, most)
        missing = [one for one in ids if found.count(one) != 1]
        require(not missing, f"with {most or 'all'} a page: {missing} not once in {found}")
    await made[0].delete()
    require(ids[0] not in await list_all_volumes(env), f"{ids[0]} is deleted and still listed")


@case(
    "list/invalid token",
    "ListVolumes Errors",
    "An invalid token is ABORTED.",
    "list",
)
async def invalid_token(env: SocketEnv) -> None:
    request = v1.ListVolumesRequest(starting_token="volplane-no-such-token")
    await env.expect_error(
        (Code.ABORTED,), env.controller, "ListVolumes", request, "with a token that is none"
    )


@case(
    "get/volume",
    "ControllerGetVolume",
    "An existing volume is returned; an unknown one is NOT_FOUND.",
    "get",
    "create",
)
async def get(env: SocketEnv) -> None:
    volume = await env.create()
    reply = await env.controller.call(
        "ControllerGetVolume", v1.ControllerGetVolumeRequest(volume_id=volume.id)
    )
    require(reply.volume.volume_id == volume.id, f"requested {volume.id}, got {reply.volume.volume_id!r}")
    unknown = v1.ControllerGetVolumeRequest(volume_id=UNKNOWN)
    await env.expect_error(
        (Code.NOT_FOUND,), env.controller, "ControllerGetVolume", unknown, "of an unknown volume"
    )


async def read_available_capacity(env: SocketEnv) -> v1.GetCapacityResponse:
    """GetCapacity for the first node."""
    request = v1.GetCapacityRequest(volume_capabilities=[WRITER], parameters=env.parameters)
    if env.capabilities.has("topology") and env.nodes[0].topology:
        request.accessible_topology.CopyFrom(convert.topology(env.nodes[0].topology))
    reply: v1.GetCapacityResponse = await env.controller.call("GetCapacity", request)
    return reply


@case("capacity/answer", "GetCapacity", "The available capacity is not negative.", "capacity")
async def get_capacity(env: SocketEnv) -> None:
    reply = await read_available_capacity(env)
    require(reply.available_capacity >= 0, f"{reply.available_capacity} bytes are available")


@case(
    "secrets/with each call",
    "Secrets Requirements",
    "Each call that needs secrets has them: a restarted driver must not depend on secrets of earlier calls.",
    "secrets",
    "create",
)
async def secrets(env: SocketEnv) -> None:
    volume = await env.create()
    for instance in env.instances:
        await instance.restart()
    try:
        path = await volume.attach_stage_publish(env.nodes[0])
    except CallError as error:
        raise CaseFailure(f"after the driver was killed, with the secrets in each call: {error}") from None
    data = env.random_data()
    await volume.write(path, data)
    await env.expect_data(volume, path, data, "with its secrets given in each call")


@case(
    "delete/in use",
    "DeleteVolume Errors",
    "A volume in use cannot be deleted: FAILED_PRECONDITION.",
    "create",
    "attach",
)
async def in_use(env: SocketEnv) -> None:
    volume = await env.create_and_publish()
    request = v1.DeleteVolumeRequest(volume_id=volume.id, secrets=env.secrets)
    try:
        await env.controller.call("DeleteVolume", request)
    except CallError as error:
        require(error.code is Code.FAILED_PRECONDITION, f"DeleteVolume of a volume in use: {error}")
    else:
        require(False, "DeleteVolume of a published volume: OK, expected FAILED_PRECONDITION")
