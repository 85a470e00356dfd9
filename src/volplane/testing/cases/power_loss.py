"""A power loss: the disk is what it was at one moment, with a file system that was never unmounted.

The node comes back without any mount, but with all files of the driver. For the contents of the disk the
driver is killed, and the file behind the volume's loop device is copied while it is mounted. The copy then
takes the place of the file. Drivers whose disks are not loop devices of this machine cannot be judged: their
storage is not visible from outside.
"""

from __future__ import annotations

import os
from pathlib import Path

from volplane.csi.outcome import CallError
from volplane.testing.case import CaseFailure, CaseTable, NotSupported
from volplane.testing.given_volumes import InlineVolume
from volplane.testing.socket_env import SocketEnv, force_unmount_below
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

MOST_COPIES = 20  # until nothing was written to the device during one


@case(
    "power/lost while in use",
    "NodeStageVolume",
    "After a power loss the volume can be used again, and has everything that was synced. (Only for disks"
    " that are files behind loop devices of this machine.)",
    "create",
)
async def lost_in_use(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    device, image = await _find_image(env, volume)
    written = env.random_data(4 << 20)
    await volume.write(volume.target(node), written)  # synced
    await node.instance.kill()
    copy = env.directory / env.new_name("power")
    try:
        await _copy_at_one_moment(env, device, image, str(copy))
        await node.instance.start()
        await volume.unpublish_unstage_detach(node)
        if image in (await env.host.loops()).values():
            raise NotSupported(f"{image} is still in use after the volume was detached")
        await env.host.run(["cp", "--sparse=always", str(copy), image])
    finally:
        await env.host.call(copy.unlink, missing_ok=True)
    try:
        path = await volume.attach_stage_publish(node)
    except CallError as error:
        raise CaseFailure(f"after a power loss: {error}, expected OK") from None
    await env.expect_data(volume, path, written, "after a power loss, although it was synced")


async def _copy_at_one_moment(env: SocketEnv, device: str, image: str, copy: str) -> None:
    """Copy the image; again if the kernel has written to the device meanwhile."""
    for _ in range(MOST_COPIES):
        before = await env.host.call(_writes, device)
        await env.host.run(["cp", "--sparse=always", image, copy])
        if await env.host.call(_writes, device) == before:
            return
    raise NotSupported(f"{device} is written all the time, so no copy of it is one moment")


def _writes(device: str) -> tuple[str, ...]:
    """The numbers of writes to a device that are finished and under way."""
    fields = Path("/sys/block", os.path.basename(device), "stat").read_text().split()
    return fields[4], fields[6], fields[8]


async def _find_image(env: SocketEnv, volume: VolumeUnderTest) -> tuple[str, str]:
    """The volume's loop device and the file behind it. Raises NotSupported."""
    entry = (await env.host.mounts()).at(volume.target(env.nodes[0]))
    loops = await env.host.loops()
    image = loops.get(entry.source, "") if entry is not None and entry.root == "/" else ""
    if entry is None or not await env.host.call(os.path.isfile, image):
        raise NotSupported(
            "its disks are not files behind loop devices of this machine, so they cannot be seen"
        )
    return entry.source, image


@case(
    "power/node starts again",
    "NodePublishVolume",
    "On a node that has started again nothing is mounted, and a stage and publish at the same paths mount the"
    " volume again: what the driver has stored about its mounts is not true any more.",
    "create",
)
async def node_starts_again(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    written = env.random_data()
    if not isinstance(volume, InlineVolume):  # those may be in memory
        await volume.write(volume.target(node), written)
    await node.instance.kill()
    await env.host.call(os.sync)
    await env.host.call(force_unmount_below, str(node.root))
    for device in await env.host.loops_below(str(env.directory)):
        await env.host.loop_detach(device)
    await node.instance.start()
    try:
        await volume.stage(node)
        path = await volume.publish(node)
    except CallError as error:
        raise CaseFailure(f"after the node has started again: {error}, expected OK") from None
    await env.expect_data(volume, path, written, "after the node has started again")
