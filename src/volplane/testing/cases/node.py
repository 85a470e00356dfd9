"""The node service: stage, publish, share, read and write, statistics, unpublish, unstage."""

from __future__ import annotations

import asyncio
import errno
import os

from volplane.csi import convert, v1
from volplane.csi.outcome import CallError, Code
from volplane.testing.case import CaseFailure, CaseTable, NotSupported, require
from volplane.testing.cases.controller import UNKNOWN
from volplane.testing.socket_env import BLOCK, WRITER, DriverSocket, Mode, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

MANY = 6


@case(
    "publish/data",
    "NodePublishVolume",
    "Data that is written at a target can be read there, and at the next target.",
    "create",
)
async def data(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(of=4 << 20), env.nodes[0]
    await env.expect_data(volume, volume.target(node), written, "right after it was written")
    await volume.unpublish(node)
    await env.expect_data(
        volume, await volume.publish(node, "b"), written, "at a second target after the first"
    )


@case(
    "publish/two pods of one node",
    "Kubernetes: pods of a node share a ReadWriteOnce volume",
    "A published volume can be published at a second target of the node, with the same data.",
    "create",
)
async def share(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    second = await volume.publish(node, "b")
    written = env.random_data()
    await volume.write(volume.target(node), written)
    await env.expect_data(volume, second, written, "at the second of two targets")
    await volume.unpublish(node)
    await env.expect_data(volume, second, written, "at the second target when the first is gone")


@case(
    "publish/one pod only",
    "NodePublishVolume Errors",
    "A single-writer volume that is published cannot be published again: FAILED_PRECONDITION.",
    "create",
    "single-writer",
)
async def single_writer(env: SocketEnv) -> None:
    capability = convert.capability(Mode.SINGLE_NODE_SINGLE_WRITER)
    volume, node = await env.create_and_publish(capability=capability), env.nodes[0]
    target = volume.target(node, "b")
    request = volume.mount_request(node, target)
    volume.targets[target] = node
    await env.expect_error(
        (Code.FAILED_PRECONDITION,), node, "NodePublishVolume", request, "at a second target"
    )


@case(
    "publish/read-only",
    "NodePublishVolume",
    "A target with `readonly` has the data and cannot be written.",
    "create",
)
async def readonly(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(), env.nodes[0]
    await volume.unpublish(node)
    path = await volume.publish(node, "b", readonly=True)
    await env.expect_data(volume, path, written, "at a read-only target")
    try:
        await volume.write(node.seen_by_driver(path), b"no", "other")
    except OSError as error:
        require(error.errno in (errno.EROFS, errno.EACCES, errno.EPERM), f"writing failed with {error}")
    else:
        raise CaseFailure(f"{path} is published with readonly, and a file could be written there")


@case(
    "publish/target is removed",
    "NodeUnpublishVolume",
    "The driver creates the target, and deletes it when the volume is unpublished.",
    "create",
)
async def target_is_removed(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    target = volume.target(node)
    await volume.unpublish(node)
    require(not await env.host.is_mount(target), f"{target} is still a mount", section="NodeUnpublishVolume")
    require(not await env.host.call(os.path.lexists, target), f"{target} is still there")


@case(
    "publish/never published",
    "NodeUnpublishVolume",
    "Unpublishing a target without the volume is OK.",
    "create",
)
async def never_published(env: SocketEnv) -> None:
    volume, node = await env.create(), env.nodes[0]
    await volume.unpublish(node)


@case(
    "publish/unknown volume",
    "NodePublishVolume Errors",
    "A volume that does not exist is NOT_FOUND.",
    "create",
)
async def unknown_volume(env: SocketEnv) -> None:
    node = env.nodes[0]
    volume = await _make_unknown(env)
    request = volume.mount_request(node, volume.target(node))
    # The volume was not staged either, and a driver may check that first.
    codes = (Code.NOT_FOUND, Code.FAILED_PRECONDITION) if env.capabilities.has("stage") else (Code.NOT_FOUND,)
    await env.expect_error(codes, node, "NodePublishVolume", request, "of an unknown volume")


@case(
    "publish/before stage",
    "NodePublishVolume Errors",
    "If the driver stages volumes, a publish without a staging path is FAILED_PRECONDITION.",
    "create",
    "stage",
)
async def before_stage(env: SocketEnv) -> None:
    volume, node = await env.create(), env.nodes[0]
    await volume.attach(node)
    target = volume.target(node)
    request = volume.mount_request(node, target)
    request.staging_target_path = ""
    volume.targets[target] = node
    # A missing argument is INVALID_ARGUMENT by the general rule: the specification has both.
    codes = (Code.FAILED_PRECONDITION, Code.INVALID_ARGUMENT)
    await env.expect_error(codes, node, "NodePublishVolume", request, "without a staging path")


@case(
    "publish/missing arguments",
    "Error Scheme",
    "A missing required field is INVALID_ARGUMENT.",
    "create",
)
async def missing_arguments(env: SocketEnv) -> None:
    volume, node = await env.create(), env.nodes[0]
    code = (Code.INVALID_ARGUMENT,)
    for field in ("volume_id", "target_path", "volume_capability"):
        request = volume.mount_request(node, volume.target(node))
        request.ClearField(field)
        await env.expect_error(code, node, "NodePublishVolume", request, f"without {field}")
    for field in ("volume_id", "target_path"):
        undo = v1.NodeUnpublishVolumeRequest(volume_id=volume.id, target_path=volume.target(node))
        undo.ClearField(field)
        await env.expect_error(code, node, "NodeUnpublishVolume", undo, f"without {field}")


async def _make_unknown(env: SocketEnv) -> VolumeUnderTest:
    """A volume that does not exist any more, with its own id and volume_context.

    A cluster never combines the id of one volume with the context of another, and a node service may find a
    volume by its context alone (an NFS share, a directory).
    """
    if env.capabilities.has("given"):
        raise NotSupported("a driver that does not create volumes need not know which exist")
    if not env.capabilities.has("create"):
        volume = VolumeUnderTest(env, env.create_request(env.new_name()), WRITER)
        volume.made = v1.Volume(volume_id=UNKNOWN)
        return volume
    volume = await env.create()
    made = volume.made
    await volume.delete()
    volume.made = made
    return volume


@case(
    "stage/unknown volume",
    "NodeStageVolume Errors",
    "A volume that does not exist is NOT_FOUND.",
    "stage",
)
async def stage_unknown(env: SocketEnv) -> None:
    node = env.nodes[0]
    volume = await _make_unknown(env)
    request = volume.stage_request(node)
    codes: tuple[Code, ...] = (Code.NOT_FOUND,)
    if env.capabilities.has("attach"):
        # The volume was not attached either: a driver may check the publish context first.
        codes += (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION)
    await env.expect_error(codes, node, "NodeStageVolume", request, "of an unknown volume")


@case(
    "stage/missing arguments",
    "Error Scheme",
    "A missing required field is INVALID_ARGUMENT.",
    "stage",
    "create",
)
async def stage_missing(env: SocketEnv) -> None:
    volume, node = await env.create(), env.nodes[0]
    code = (Code.INVALID_ARGUMENT,)
    for field in ("volume_id", "staging_target_path", "volume_capability"):
        request = volume.stage_request(node)
        request.ClearField(field)
        await env.expect_error(code, node, "NodeStageVolume", request, f"without {field}")


@case(
    "stage/never staged",
    "NodeUnstageVolume",
    "Unstaging a path without the volume is OK.",
    "stage",
    "create",
)
async def never_staged(env: SocketEnv) -> None:
    volume, node = await env.create(), env.nodes[0]
    await volume.unstage(node)


@case(
    "stage/keeps the data",
    "NodeUnstageVolume",
    "A volume that is unstaged and staged again keeps its data.",
    "create",
)
async def keeps_data(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(), env.nodes[0]
    for _ in range(2):
        await volume.unpublish_unstage_detach(node)
        await env.expect_data(
            volume, await volume.attach_stage_publish(node), written, "after unstage and stage"
        )


@case(
    "stage/path is left",
    "NodeUnstageVolume",
    "After NodeUnstageVolume nothing is mounted at the staging path.",
    "stage",
    "create",
)
async def path_is_left(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    staging = volume.staging(node)
    await volume.unpublish(node)
    await volume.unstage(node)
    left = [e.target for e in await env.host.mounts() if e.target.startswith(staging)]
    require(not left, f"after NodeUnstageVolume {left} is still mounted")


@case(
    "block/data",
    "NodePublishVolume",
    "A raw device keeps its data, at the next target and after it was unstaged.",
    "create",
)
async def block(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(capability=BLOCK), env.nodes[0]
    await env.expect_data(volume, volume.target(node), written, "on the device")
    await volume.unpublish_unstage_detach(node)
    await env.expect_data(
        volume, await volume.attach_stage_publish(node), written, "on the device, when it came back"
    )


@case(
    "stats/usage",
    "NodeGetVolumeStats",
    "Total, used and available bytes (and inodes) of a published volume are plausible.",
    "stats",
    "create",
)
async def stats(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    await volume.write(volume.target(node), env.random_data())
    reply = await stats_are_plausible(node, volume, volume.target(node))
    require(reply.usage, "NodeGetVolumeStats returned no usage")
    for usage in reply.usage:
        unit = v1.VolumeUsage.Unit.Name(usage.unit)
        require(usage.unit != v1.VolumeUsage.UNKNOWN, "a usage has no unit")
        require(usage.total > 0, f"the total of {unit} is {usage.total}")
        fits = 0 <= usage.used <= usage.total and 0 <= usage.available <= usage.total
        require(fits, f"{unit}: {usage.used} used, {usage.available} available, {usage.total} in all")


@case(
    "stats/unknown path",
    "NodeGetVolumeStats Errors",
    "A path without the volume is NOT_FOUND.",
    "stats",
    "create",
)
async def stats_unknown(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    request = v1.NodeGetVolumeStatsRequest(volume_id=volume.id, volume_path=str(node.root / "nowhere"))
    await env.expect_error(
        (Code.NOT_FOUND,), node, "NodeGetVolumeStats", request, "of a path that is not there"
    )


async def stats_are_plausible(
    node: DriverSocket, volume: VolumeUnderTest, path: str
) -> v1.NodeGetVolumeStatsResponse:
    request = v1.NodeGetVolumeStatsRequest(
        volume_id=volume.id, volume_path=path, staging_target_path=volume.staging(node)
    )
    reply: v1.NodeGetVolumeStatsResponse = await node.call("NodeGetVolumeStats", request)
    return reply


@case(
    "publish/mount group",
    "NodeStageVolume",
    "With VOLUME_MOUNT_GROUP the volume's files belong to the requested group.",
    "mount-group",
    "create",
)
async def mount_group(env: SocketEnv) -> None:
    capability = convert.capability(Mode.SINGLE_NODE_WRITER, group="4711")
    volume = await env.create_and_publish(capability=capability)
    found = os.stat(volume.target(env.nodes[0])).st_gid
    require(found == 4711, f"group 4711 is requested, the volume's root belongs to {found}")


@case(
    "publish/many volumes at once",
    "Concurrency",
    "Concurrent calls for different volumes succeed.",
    "create",
)
async def many(env: SocketEnv) -> None:
    node = env.nodes[0]

    async def live(number: int) -> None:
        volume = await env.create()
        path = await volume.attach_stage_publish(node)
        written = f"volume {number}".encode() * 1000
        await volume.write(path, written)
        await env.expect_data(volume, path, written, "with others at the same time")
        await volume.take_down_and_delete(node)

    count = min(MANY, node.most or MANY)
    answers = await asyncio.gather(*(live(number) for number in range(count)), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, CallError):
            raise CaseFailure(f"{count} volumes at once: {answer}")
        if isinstance(answer, BaseException):
            raise answer
