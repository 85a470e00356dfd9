"""What a call does not name stays as it is: volumes and targets with similar names, the target's parent."""

from __future__ import annotations

from pathlib import Path

from volplane.testing.case import CaseFailure, CaseTable, require
from volplane.testing.cases.controller import list_all_volumes
from volplane.testing.cases.snapshots_clones import delete_snapshot, list_all_snapshots, snapshot_request
from volplane.testing.socket_env import WRITER, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

POD, SIMILAR_POD = "a", "ab"
METADATA = "vol_data.json"  # what a kubelet writes beside the target


@case(
    "delete/similar names",
    "DeleteVolume",
    "Volumes and snapshots whose names begin with the name of a deleted one are kept, with their data.",
    "provision",
)
async def delete_similar_names(env: SocketEnv) -> None:
    name, node = env.new_name(), env.nodes[0]
    gone, kept = (VolumeUnderTest(env, env.create_request(name + end), WRITER) for end in ("", "-1"))
    for volume in (gone, kept):
        env.volumes.append(volume)
        await volume.create()
    path, written = await kept.attach_stage_publish(node), env.random_data()
    await kept.write(path, written)
    await kept.unpublish_unstage_detach(node)
    if env.capabilities.has("snapshot"):
        await _delete_one_snapshot(env, kept)
    await gone.delete()
    if env.capabilities.has("list"):
        require(
            kept.id in await list_all_volumes(env),
            f"{name} is deleted, and {kept.request.name} ({kept.id}) is not listed any more",
        )
    await env.expect_data(
        kept, await kept.attach_stage_publish(node), written, "after a volume with a similar name was deleted"
    )


async def _delete_one_snapshot(env: SocketEnv, volume: VolumeUnderTest) -> None:
    """Delete the first of two snapshots with similar names."""
    name, ids = env.new_name("snapshot"), []
    for end in ("", "-1"):
        reply = await env.controller.call("CreateSnapshot", snapshot_request(env, volume, name + end))
        ids.append(reply.snapshot.snapshot_id)
        env.snapshots.append(ids[-1])
    await delete_snapshot(env, ids[0])
    if env.capabilities.has("list-snapshots"):
        require(
            ids[1] in await list_all_snapshots(env),
            f"snapshot {name} is deleted, and {name}-1 ({ids[1]}) is not listed any more",
            section="DeleteSnapshot",
        )


@case(
    "unpublish/similar targets",
    "NodeUnpublishVolume",
    "Other targets stay published, also those whose paths begin with the path of an unpublished one.",
    "create",
)
async def unpublish_similar_targets(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(), env.nodes[0]
    other = await volume.publish(node, SIMILAR_POD)
    await volume.unpublish(node, POD)
    await env.expect_data(volume, other, written, f"at {other}, after another target was unpublished")


@case(
    "unpublish/parent is kept",
    "NodeUnpublishVolume",
    "The parent of the target, and what else is in it, are the caller's: they stay.",
    "create",
)
async def parent_is_kept(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    parent = Path(volume.target(node)).parent
    await volume.unpublish(node)
    require(await env.host.call(parent.is_dir), f"{parent}, which is not the driver's, is deleted")
    await env.host.call((parent / METADATA).write_text, "{}")
    try:
        await volume.publish(node)
        await volume.unpublish(node)
        kept = await env.host.call((parent / METADATA).exists)
        require(kept, f"{parent / METADATA}, which is not the driver's, is deleted")
    finally:
        await env.host.call((parent / METADATA).unlink, True)


@case(
    "publish/read-only beside writable",
    "NodePublishVolume",
    "A target with `readonly` leaves another one of the volume writable.",
    "create",
)
async def read_only_beside_writable(env: SocketEnv) -> None:
    env.require_writable()
    (volume, written), node = await env.create_with_data(), env.nodes[0]
    await env.expect_data(
        volume, await volume.publish(node, SIMILAR_POD, readonly=True), written, "at a read-only target"
    )
    target, more = volume.target(node), env.random_data()
    try:
        await volume.write(target, more)
    except OSError as error:
        raise CaseFailure(
            f"{target} is published writable, and cannot be written after another target was published with"
            f" readonly: {error.strerror}"
        ) from None
    await env.expect_data(volume, target, more, "at the writable one of two targets")
