"""A volume grows: in use or not, with its data, as often as it is asked."""

from __future__ import annotations

from typing import Any

from volplane.csi import convert, v1
from volplane.csi.outcome import CallError, Code
from volplane.testing.case import CaseTable, NotSupported, require
from volplane.testing.cases.controller import UNKNOWN
from volplane.testing.socket_env import BLOCK, DriverSocket, Mode, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

CAP_SYS_RESOURCE = 24


async def expand_in_controller(bench: SocketEnv, volume: VolumeUnderTest, size: int) -> bool:
    """Whether the node has to do something, too."""
    if not bench.capabilities.has("expand-controller"):
        return True
    request = v1.ControllerExpandVolumeRequest(
        volume_id=volume.id,
        capacity_range={"required_bytes": size},
        volume_capability=volume.capability,
        secrets=bench.secrets,
    )
    reply = await bench.controller.call("ControllerExpandVolume", request)
    require(
        reply.capacity_bytes >= size,
        f"ControllerExpandVolume to {size} bytes is OK with {reply.capacity_bytes}",
        section="ControllerExpandVolume",
    )
    return bool(reply.node_expansion_required)


async def expand_on_node(bench: SocketEnv, volume: VolumeUnderTest, node: DriverSocket, size: int) -> None:
    if not bench.capabilities.has("expand-node"):
        return
    request = v1.NodeExpandVolumeRequest(
        volume_id=volume.id,
        volume_path=volume.target(node),
        staging_target_path=volume.staging(node) if bench.capabilities.has("stage") else "",
        capacity_range={"required_bytes": size},
        volume_capability=volume.capability,
        secrets=bench.secrets,
    )
    try:
        reply: Any = await node.call("NodeExpandVolume", request)
    except CallError:
        await skip_if_kernel_cannot_grow(bench, volume.target(node))
        raise
    if reply.capacity_bytes:
        require(
            reply.capacity_bytes >= size,
            f"NodeExpandVolume to {size} bytes is OK with {reply.capacity_bytes}",
            section="NodeExpandVolume",
        )


async def skip_if_kernel_cannot_grow(bench: SocketEnv, path: str) -> None:
    """Where a file system cannot grow for anybody, no driver is to blame. Raises NotPromised."""
    entry = (await bench.host.mounts()).at(path)
    if entry is not None and entry.fstype.startswith("ext") and not may_grow_mounted_ext():
        raise NotSupported(
            f"{entry.fstype} cannot grow in use on this machine, which gives no CAP_SYS_RESOURCE"
        )


def may_grow_mounted_ext() -> bool:
    with open("/proc/self/status") as file:
        effective = next(line.split()[1] for line in file if line.startswith("CapEff"))
    return bool(int(effective, 16) >> CAP_SYS_RESOURCE & 1)


def create_growable(bench: SocketEnv) -> v1.VolumeCapability:
    """A file system that can grow in use here, if a node has to make it grow."""
    anyone = may_grow_mounted_ext() or not bench.capabilities.has("expand-node")
    return convert.capability(Mode.SINGLE_NODE_WRITER, fs_type="" if anyone else "xfs")


async def expect_size(bench: SocketEnv, volume: VolumeUnderTest, node: DriverSocket, size: int) -> None:
    path = volume.target(node)
    if volume.block:
        found, least = await bench.host.size_of(path), size
    else:
        found, least = (await bench.host.stats(path)).capacity, size * 9 // 10 - (64 << 20)
    require(found >= least, f"it was to grow to {size} bytes, the node finds {found}")


@case(
    "expand/online",
    "ControllerExpandVolume",
    "A volume in use grows, what is on it stays, and the node finds the new size.",
    "create",
    "expand-online",
)
async def online(bench: SocketEnv) -> None:
    (volume, written), node = await bench.create_with_data(capability=create_growable(bench)), bench.nodes[0]
    size = 2 * bench.size
    if await expand_in_controller(bench, volume, size):
        await expand_on_node(bench, volume, node, size)
    await expect_size(bench, volume, node, size)
    await bench.expect_data(volume, volume.target(node), written, "after the volume has grown in use")


@case(
    "expand/offline",
    "ControllerExpandVolume",
    "A volume that nobody uses grows, and has the new size and its data when it is used again.",
    "create",
    "expand",
)
async def offline(bench: SocketEnv) -> None:
    (volume, written), node = await bench.create_with_data(), bench.nodes[0]
    size = 2 * bench.size
    await volume.unpublish_unstage_detach(node)
    required = await expand_in_controller(bench, volume, size)
    await volume.attach_stage_publish(node)
    if required:
        await expand_on_node(bench, volume, node, size)
    await expect_size(bench, volume, node, size)
    await bench.expect_data(volume, volume.target(node), written, "after the volume has grown out of use")


@case(
    "expand/block",
    "ControllerExpandVolume",
    "A raw device grows.",
    "create",
    "expand-online",
)
async def block(bench: SocketEnv) -> None:
    volume, node = await bench.create_and_publish(capability=BLOCK), bench.nodes[0]
    size = 2 * bench.size
    if await expand_in_controller(bench, volume, size):
        await expand_on_node(bench, volume, node, size)
    await expect_size(bench, volume, node, size)


@case(
    "expand/not smaller",
    "ControllerExpandVolume",
    "A volume that is as large as is asked, or larger, is left as it is: OK with its size.",
    "create",
    "expand-controller",
)
async def not_smaller(bench: SocketEnv) -> None:
    volume = await bench.create()
    await expand_in_controller(bench, volume, 2 * bench.size)
    request = v1.ControllerExpandVolumeRequest(
        volume_id=volume.id,
        capacity_range={"required_bytes": bench.size},
        volume_capability=volume.capability,
        secrets=bench.secrets,
    )
    reply = await bench.controller.call("ControllerExpandVolume", request)
    require(reply.capacity_bytes >= 2 * bench.size, f"it has shrunk to {reply.capacity_bytes} bytes")


@case(
    "expand/unknown volume",
    "ControllerExpandVolume Errors",
    "A volume that does not exist is NOT_FOUND.",
    "expand-controller",
)
async def expand_unknown_volume(bench: SocketEnv) -> None:
    request = v1.ControllerExpandVolumeRequest(
        volume_id=UNKNOWN, capacity_range={"required_bytes": bench.size}, secrets=bench.secrets
    )
    await bench.expect_error(
        (Code.NOT_FOUND,), bench.controller, "ControllerExpandVolume", request, "of an unknown volume"
    )
