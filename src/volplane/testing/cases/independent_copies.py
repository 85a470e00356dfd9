"""Snapshots, restored volumes and clones do not depend on each other, nor disturb a volume in use."""

from __future__ import annotations

from volplane.csi import convert, v1
from volplane.csi.outcome import CallError, Code
from volplane.host import copies
from volplane.testing.case import CaseFailure, CaseTable, NotSupported, require
from volplane.testing.cases.arguments import is_disk, usable_file_systems
from volplane.testing.cases.expand import (
    KernelCannotGrow,
    expect_size,
    has_ext,
    may_grow_mounted_ext,
    try_growable_file_systems,
)
from volplane.testing.cases.snapshots_clones import (
    delete_snapshot,
    snapshot,
    snapshot_request,
    snapshot_source,
)
from volplane.testing.socket_env import Mode, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

XFS = "xfs"


@case(
    "snapshot/volumes outlive it",
    "DeleteSnapshot",
    "A restored volume keeps its data when its snapshot is deleted, or the snapshot cannot be deleted:"
    " FAILED_PRECONDITION.",
    "snapshot",
    "create",
)
async def volumes_outlive_snapshot(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(), env.nodes[0]
    await volume.unpublish_unstage_detach(node)
    made = await snapshot(env, volume)
    restored = await env.create(source=snapshot_source(made))
    try:
        await delete_snapshot(env, made.snapshot_id)
    except CallError as error:
        require(
            error.code is Code.FAILED_PRECONDITION,
            f"DeleteSnapshot of a snapshot with a restored volume: {error}, expected OK or"
            " FAILED_PRECONDITION",
            section="DeleteSnapshot Errors",
        )
    path = await restored.attach_stage_publish(node)
    await env.expect_data(restored, path, written, "in a restored volume after its snapshot was deleted")


@case(
    "clone/outlives its source",
    "DeleteVolume",
    "A clone keeps its data when its source is deleted, or the source cannot be deleted:"
    " FAILED_PRECONDITION.",
    "clone",
    "create",
)
async def clone_outlives_source(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(), env.nodes[0]
    await volume.unpublish_unstage_detach(node)
    copy = await env.create(source=v1.VolumeContentSource(volume={"volume_id": volume.id}))
    try:
        await volume.delete()
    except CallError as error:
        require(
            error.code is Code.FAILED_PRECONDITION,
            f"DeleteVolume of a volume with a clone: {error}, expected OK or FAILED_PRECONDITION",
            section="DeleteVolume Errors",
        )
    path = await copy.attach_stage_publish(node)
    await env.expect_data(copy, path, written, "in a clone after its source was deleted")


@case(
    "snapshot/larger volume",
    "CreateVolume",
    "A volume that is larger than its snapshot has the required size also as a file system.",
    "snapshot",
    "create",
)
async def larger_volume(env: SocketEnv) -> None:
    await try_growable_file_systems(lambda capability: _restore_larger(env, capability))


async def _restore_larger(env: SocketEnv, capability: v1.VolumeCapability) -> None:
    (volume, written), node = await env.create_with_data(capability=capability), env.nodes[0]
    cannot_grow = await has_ext(env, volume.target(node)) and not may_grow_mounted_ext()
    await volume.unpublish_unstage_detach(node)
    made, size = await snapshot(env, volume), 2 * env.size
    try:
        restored = await env.create(source=snapshot_source(made), size=size, capability=capability)
    except CallError as error:
        if error.code in (Code.OUT_OF_RANGE, Code.INVALID_ARGUMENT):
            raise NotSupported(f"a volume is as large as its snapshot: {error}") from None
        raise
    try:
        path = await restored.attach_stage_publish(node)
        await _expect_disk_size(env, restored, path, size)
    except (CallError, CaseFailure):
        if cannot_grow:
            raise KernelCannotGrow from None
        raise
    await env.expect_data(restored, path, written, "in a volume that is larger than its snapshot")


async def _expect_disk_size(env: SocketEnv, volume: VolumeUnderTest, path: str, size: int) -> None:
    entry = (await env.host.mounts()).at(path)
    if entry is not None and is_disk(entry):
        await expect_size(env, volume, env.nodes[0], size)


@case(
    "snapshot/beside its source",
    "NodeStageVolume",
    "A restored volume with xfs, which has the UUID of its source, can be used on the node of the source.",
    "snapshot",
    "create",
)
async def beside_its_source(env: SocketEnv) -> None:
    if XFS not in await env.host.call(usable_file_systems):
        raise NotSupported("this machine has no xfs")
    capability = convert.capability(Mode.SINGLE_NODE_WRITER, fs_type=XFS)
    (volume, written), node = await env.create_with_data(capability=capability), env.nodes[0]
    made = await snapshot(env, volume)
    restored = await env.create(source=snapshot_source(made), capability=capability)
    try:
        path = await restored.attach_stage_publish(node)
    except CallError as error:
        raise CaseFailure(f"beside its source, which is in use: {error}, expected OK") from None
    await env.expect_data(restored, path, written, "in a restored volume beside its source")


@case(
    "snapshot/refused call",
    "CreateSnapshot Errors",
    "A CreateSnapshot that is refused leaves the volume writable: its file system is not frozen any more.",
    "snapshot",
    "create",
)
async def refused_call(env: SocketEnv) -> None:
    other, (volume, _) = await env.create(), await env.create_with_data()
    first = snapshot_request(env, other)
    env.snapshots.append((await env.controller.call("CreateSnapshot", first)).snapshot.snapshot_id)
    refused = snapshot_request(env, volume, first.name)
    try:
        reply = await env.controller.call("CreateSnapshot", refused)
    except CallError:
        pass
    else:  # `snapshot/used name` fails
        env.snapshots.append(reply.snapshot.snapshot_id)
    target = volume.target(env.nodes[0])
    frozen = await env.host.call(_thaw, target)
    require(
        not frozen,
        f"{target} is frozen after CreateSnapshot with a used name has returned: nothing can be written",
    )
    more = env.random_data()
    await volume.write(target, more)
    await env.expect_data(volume, target, more, "after a refused CreateSnapshot")


def _thaw(path: str) -> bool:
    """Thaw a frozen file system; whether it was frozen."""
    try:
        return copies.thaw(path)
    except OSError:  # a file system that cannot be frozen
        return False
