"""Expand volumes, in use and not in use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from volplane.csi import convert, v1
from volplane.csi.outcome import CallError, Code
from volplane.testing.case import CaseTable, NotSupported, require
from volplane.testing.cases.controller import UNKNOWN
from volplane.testing.socket_env import BLOCK, WRITER, DriverSocket, Mode, SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

CAP_SYS_RESOURCE = 24
CANNOT_GROW = "ext4 cannot be expanded while mounted on this machine without CAP_SYS_RESOURCE"


def expand_request(env: SocketEnv, volume: VolumeUnderTest, size: int) -> v1.ControllerExpandVolumeRequest:
    return v1.ControllerExpandVolumeRequest(
        volume_id=volume.id,
        capacity_range={"required_bytes": size},
        volume_capability=volume.capability,
        secrets=env.secrets,
    )


async def expand_in_controller(env: SocketEnv, volume: VolumeUnderTest, size: int) -> bool:
    """Call ControllerExpandVolume; whether the node must expand, too."""
    if not env.capabilities.has("expand-controller"):
        return True
    reply = await env.controller.call("ControllerExpandVolume", expand_request(env, volume, size))
    require(
        reply.capacity_bytes >= size,
        f"ControllerExpandVolume to {size} bytes returned OK with {reply.capacity_bytes}",
        section="ControllerExpandVolume",
    )
    return bool(reply.node_expansion_required)


async def expand_on_node(env: SocketEnv, volume: VolumeUnderTest, node: DriverSocket, size: int) -> None:
    if not env.capabilities.has("expand-node"):
        return
    request = v1.NodeExpandVolumeRequest(
        volume_id=volume.id,
        volume_path=volume.target(node),
        staging_target_path=volume.staging(node) if env.capabilities.has("stage") else "",
        capacity_range={"required_bytes": size},
        volume_capability=volume.capability,
        secrets=env.secrets,
    )
    try:
        reply: Any = await node.call("NodeExpandVolume", request)
    except CallError:
        await skip_if_kernel_cannot_grow(env, volume.target(node))
        raise
    if reply.capacity_bytes:
        require(
            reply.capacity_bytes >= size,
            f"NodeExpandVolume to {size} bytes returned OK with {reply.capacity_bytes}",
            section="NodeExpandVolume",
        )


async def skip_if_kernel_cannot_grow(env: SocketEnv, path: str) -> None:
    """Raise NotSupported if this machine cannot expand the mounted file system at all."""
    if await has_ext(env, path) and not may_grow_mounted_ext():
        raise NotSupported(CANNOT_GROW)


async def has_ext(env: SocketEnv, path: str) -> bool:
    entry = (await env.host.mounts()).at(path)
    return entry is not None and entry.fstype.startswith("ext")


class KernelCannotGrow(Exception):
    """The driver expands a file system while it stages a volume, and this machine cannot."""


async def try_growable_file_systems(body: Callable[[v1.VolumeCapability], Awaitable[None]]) -> None:
    """Run the body with the driver's own file system; with xfs if this machine cannot grow that one."""
    try:
        await body(WRITER)
    except KernelCannotGrow:
        await body(convert.capability(Mode.SINGLE_NODE_WRITER, fs_type="xfs"))


def may_grow_mounted_ext() -> bool:
    with open("/proc/self/status") as file:
        effective = next(line.split()[1] for line in file if line.startswith("CapEff"))
    return bool(int(effective, 16) >> CAP_SYS_RESOURCE & 1)


def create_growable(env: SocketEnv) -> v1.VolumeCapability:
    """A capability whose file system can be expanded while mounted on this machine."""
    anyone = may_grow_mounted_ext() or not env.capabilities.has("expand-node")
    return convert.capability(Mode.SINGLE_NODE_WRITER, fs_type="" if anyone else "xfs")


async def expect_size(env: SocketEnv, volume: VolumeUnderTest, node: DriverSocket, size: int) -> None:
    path = volume.target(node)
    if volume.block:
        found, least = await env.host.size_of(path), size
    else:
        found, least = (await env.host.stats(path)).capacity, size * 9 // 10 - (64 << 20)
    require(found >= least, f"expanded to {size} bytes, the node finds {found}")


@case(
    "expand/online",
    "ControllerExpandVolume",
    "A volume in use is expanded, keeps its data, and has the new size on the node.",
    "create",
    "expand-online",
)
async def online(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(capability=create_growable(env)), env.nodes[0]
    size = 2 * env.size
    if await expand_in_controller(env, volume, size):
        await expand_on_node(env, volume, node, size)
    await expect_size(env, volume, node, size)
    await env.expect_data(volume, volume.target(node), written, "after the volume has grown in use")


@case(
    "expand/offline",
    "ControllerExpandVolume",
    "An unused volume is expanded, and has the new size and its data when it is used again.",
    "create",
    "expand",
)
async def offline(env: SocketEnv) -> None:
    await try_growable_file_systems(lambda capability: _expand_offline(env, capability))


async def _expand_offline(env: SocketEnv, capability: v1.VolumeCapability) -> None:
    (volume, written), node = await env.create_with_data(capability=capability), env.nodes[0]
    size = 2 * env.size
    is_ext = await has_ext(env, volume.target(node))
    await volume.unpublish_unstage_detach(node)
    required = await expand_in_controller(env, volume, size)
    try:
        await volume.attach_stage_publish(node)
    except CallError:
        if is_ext and not may_grow_mounted_ext():
            raise KernelCannotGrow from None
        raise
    if required:
        await expand_on_node(env, volume, node, size)
    await expect_size(env, volume, node, size)
    await env.expect_data(volume, volume.target(node), written, "after the volume has grown out of use")


@case(
    "expand/block",
    "ControllerExpandVolume",
    "A raw device is expanded.",
    "create",
    "expand-online",
)
async def block(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(capability=BLOCK), env.nodes[0]
    size = 2 * env.size
    if await expand_in_controller(env, volume, size):
        await expand_on_node(env, volume, node, size)
    await expect_size(env, volume, node, size)


@case(
    "expand/not smaller",
    "ControllerExpandVolume",
    "A volume that has the requested size, or is larger, is not changed: OK with its size.",
    "create",
    "expand-controller",
)
async def not_smaller(env: SocketEnv) -> None:
    volume = await env.create()
    await expand_in_controller(env, volume, 2 * env.size)
    reply = await env.controller.call("ControllerExpandVolume", expand_request(env, volume, env.size))
    require(reply.capacity_bytes >= 2 * env.size, f"the volume was shrunk to {reply.capacity_bytes} bytes")


@case(
    "expand/unknown volume",
    "ControllerExpandVolume Errors",
    "A volume that does not exist is NOT_FOUND.",
    "expand-controller",
)
async def expand_unknown_volume(env: SocketEnv) -> None:
    request = v1.ControllerExpandVolumeRequest(
        volume_id=UNKNOWN, capacity_range={"required_bytes": env.size}, secrets=env.secrets
    )
    await env.expect_error(
        (Code.NOT_FOUND,), env.controller, "ControllerExpandVolume", request, "of an unknown volume"
    )
