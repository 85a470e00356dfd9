"""Unpublish and unstage while a file of the volume is open.

The kernel refuses to unmount a file system with open files (EBUSY). A driver returns an error then, and the
caller repeats the call. A driver that goes on deletes data, and one that only detaches the mount (a lazy
unmount) returns OK for a volume that is still being written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from volplane.csi import v1
from volplane.csi.outcome import CallError
from volplane.testing.case import CaseFailure, CaseTable, NotSupported, require
from volplane.testing.socket_env import DriverSocket, SocketEnv
from volplane.testing.volume import DATA_FILE

case = CaseTable()


@contextmanager
def open_file(directory: str, name: str) -> Iterator[int]:
    descriptor = os.open(os.path.join(directory, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _can_be_written(descriptor: int) -> bool:
    try:
        os.pwrite(descriptor, b"late", 0)
        os.fsync(descriptor)
    except OSError:
        return False
    return True


async def _require_mount(env: SocketEnv, path: str) -> None:
    if not await env.host.is_mount(path):
        raise NotSupported(f"{path} is not a mount")


@case(
    "unpublish/busy target",
    "NodeUnpublishVolume",
    "Unpublishing a target with an open file may fail, but never deletes data; when the file is closed it"
    " succeeds.",
    "create",
)
async def busy_target(env: SocketEnv) -> None:
    env.require_writable()
    (volume, written), node = await env.create_with_data(), env.nodes[0]
    target = volume.target(node)
    with open_file(target, DATA_FILE):
        code = await _call(node, v1.NodeUnpublishVolumeRequest(volume_id=volume.id, target_path=target))
    try:
        await volume.unpublish(node)
    except CallError as error:
        raise CaseFailure(f"NodeUnpublishVolume after the file was closed: {error}, expected OK") from None
    path = await volume.publish(node, "b")
    await env.expect_data(
        volume, path, written, f"after NodeUnpublishVolume ({code}) while a file was open at the target"
    )


@case(
    "unpublish/not only detached",
    "NodeUnpublishVolume",
    "After OK the file system is unmounted: a file that was opened before cannot be written any more.",
    "create",
)
async def lazy_unpublish(env: SocketEnv) -> None:
    env.require_writable()
    volume, node = await env.create_and_publish(), env.nodes[0]
    target = volume.target(node)
    await _require_mount(env, target)
    with open_file(target, "open") as descriptor:
        code = await _call(node, v1.NodeUnpublishVolumeRequest(volume_id=volume.id, target_path=target))
        require(
            code != "OK" or not _can_be_written(descriptor),
            f"NodeUnpublishVolume of {target} returned OK, and a file opened there can still be written: the"
            " mount was only detached (lazy unmount)",
        )


@case(
    "unstage/not only detached",
    "NodeUnstageVolume",
    "After OK the file system is unmounted: a file that was opened before cannot be written any more.",
    "create",
    "stage",
)
async def lazy_unstage(env: SocketEnv) -> None:
    env.require_writable()
    volume, node = await env.create_and_publish(), env.nodes[0]
    staging = volume.staging(node)
    await _require_mount(env, staging)
    await volume.unpublish(node)
    with open_file(staging, "open") as descriptor:
        code = await _call(
            node, v1.NodeUnstageVolumeRequest(volume_id=volume.id, staging_target_path=staging)
        )
        require(
            code != "OK" or not _can_be_written(descriptor),
            f"NodeUnstageVolume of {staging} returned OK, and a file opened there can still be written: the"
            " mount was only detached (lazy unmount), and the volume may be attached elsewhere now",
        )


async def _call(
    node: DriverSocket, request: v1.NodeUnpublishVolumeRequest | v1.NodeUnstageVolumeRequest
) -> str:
    """Call once; returns the code."""
    try:
        await node.call_once(type(request).__name__.removesuffix("Request"), request)
    except CallError as error:
        return error.code.name
    return "OK"
