"""Mount a block device that may still be blank."""

from __future__ import annotations

from collections.abc import Sequence

from volplane.host import UNKNOWN, Host
from volplane.volumes.base import VolumeOperationError

DEFAULT_FS_TYPE = "ext4"


async def format_and_mount(
    host: Host, device: str, target: str, fs_type: str, options: Sequence[str] = ()
) -> None:
    """Format the device only if it is proven blank, check it otherwise, and mount it at `target`.

    A device that has a file system keeps it, whatever `fs_type` says.
    """
    found = await host.probe(device)
    if found is None and "ro" in options:
        raise VolumeOperationError(f"cannot mount {device} read-only: it is blank, and is not formatted then")
    if found is None:
        await host.mkfs(device, fs_type or DEFAULT_FS_TYPE)
    elif found.type == UNKNOWN:
        raise VolumeOperationError(f"{device} holds data of an unknown type and is not formatted")
    elif "ro" not in options:
        await host.fsck(device, found.type)
    await host.mount(device, target, found.type if found else fs_type or DEFAULT_FS_TYPE, options)
