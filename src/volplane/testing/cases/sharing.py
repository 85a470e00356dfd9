"""Volumes that are used on two nodes at the same time."""

from __future__ import annotations

from volplane.csi import convert, v1
from volplane.testing.case import CaseTable, NotSupported, require
from volplane.testing.cases.snapshots_clones import snapshot, snapshot_source
from volplane.testing.socket_env import SHARED, Mode, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

READERS = convert.capability(Mode.MULTI_NODE_READER_ONLY)
SHARED_BLOCK = convert.capability(Mode.MULTI_NODE_MULTI_WRITER, block=True)


@case(
    "share/two nodes write",
    "CreateVolume",
    "A volume with MULTI_NODE_MULTI_WRITER is used on two nodes at once, and each reads what the"
    " other has written; it stays at the one when it leaves the other.",
    "create",
    "nodes",
)
async def writers(env: SocketEnv) -> None:
    volume = await env.create(capability=SHARED)
    first, second = env.nodes[0], env.require_second_node(volume)
    here, there = await volume.attach_stage_publish(first), await volume.attach_stage_publish(second)
    for path, other, who in ((here, there, first.id), (there, here, second.id)):
        written = env.random_data()
        await volume.write(path, written, name=who)
        found = await volume.read(other, name=who)
        require(
            found == written, f"{who} has written {len(written)} bytes, the other node finds {len(found)}"
        )
    await volume.unpublish_unstage_detach(first)
    found = await volume.read(there, name=second.id)
    require(found == written, f"the volume has left {first.id}, and {second.id} finds {len(found)} bytes")


@case(
    "share/two nodes write to a device",
    "CreateVolume",
    "A raw device with MULTI_NODE_MULTI_WRITER has the same data on two nodes.",
    "create",
    "nodes",
)
async def devices(env: SocketEnv) -> None:
    volume = await env.create(capability=SHARED_BLOCK)
    first, second = env.nodes[0], env.require_second_node(volume)
    here, there = await volume.attach_stage_publish(first), await volume.attach_stage_publish(second)
    written = env.random_data()
    await volume.write(here, written)
    await env.expect_data(volume, there, written, f"on the device at {second.id}, written at {first.id}")


@case(
    "share/two nodes read",
    "CreateVolume",
    "A clone with MULTI_NODE_READER_ONLY can be read on two nodes.",
    "create",
    "nodes",
)
async def readers(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(), env.nodes[0]
    await volume.unpublish_unstage_detach(node)
    copy = await env.create(capability=READERS, source=await _source(env, volume))
    for one in (node, env.require_second_node(copy)):
        await copy.attach(one, readonly=env.capabilities.has("attach-readonly"))
        await copy.stage(one)
        path = await copy.publish(one, readonly=True)
        await env.expect_data(copy, path, written, f"on {one.id}, one of two readers")


async def _source(env: SocketEnv, volume: VolumeUnderTest) -> v1.VolumeContentSource:
    if env.capabilities.has("snapshot"):
        return snapshot_source(await snapshot(env, volume))
    if env.capabilities.has("clone"):
        return v1.VolumeContentSource(volume={"volume_id": volume.id})
    raise NotSupported("it makes no volume from another, and an empty one has nothing to read")
