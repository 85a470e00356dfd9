"""What nearly every node service does: format and mount, bind, publish a block device, undo it, measure it.

All of it may run twice: each step looks first at what the machine shows. A device is formatted only if it
is proven blank. Targets are the driver's to create and to delete, their parents are the kubelet's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from volplane.csi import v1
from volplane.host import UNKNOWN, Host, MountEntry, Unreadable, WrongState
from volplane.sdk.errors import AlreadyExists, FailedPrecondition, Internal, NotFound

DEFAULT_FILESYSTEM = "ext4"


class Mounter:
    def __init__(self, host: Host) -> None:
        self.host = host

    async def stage(self, device: str, target: str, fstype: str = "", options: Sequence[str] = ()) -> None:
        """Format `device` if it is blank, check it, and mount it at `target`."""
        device = await self.host.call(os.path.realpath, device)
        await self.host.call(os.makedirs, target, 0o750, True)
        held = (await self.host.mounts()).at(target)
        if held is not None:
            await self._check_staged(held, device, fstype)
            return
        kind = await self._filesystem(device, fstype)
        if "ro" not in options:
            await self._repair(device, kind)
        try:
            await self.host.mount(device, target, kind, mount_options(kind, options))
        except OSError as error:
            raise Internal(f"{device} cannot be mounted at {target} as {kind}: {error.strerror}") from error

    async def _check_staged(self, held: MountEntry, device: str, fstype: str) -> None:
        number = await self.host.call(_device_number, device)
        if held.device != number:
            raise AlreadyExists(f"{held.target} is taken by {held.source}, not by {device}")
        if fstype and held.fstype != fstype:
            raise AlreadyExists(f"{held.target} is mounted as {held.fstype}, not as {fstype}")

    async def _filesystem(self, device: str, fstype: str) -> str:
        """What is on the device; if nothing is, the wanted file system is made."""
        try:
            found = await self.host.probe(device)
        except Unreadable as error:
            raise Internal(f"{device} cannot be read: {error.strerror}") from error
        if found is None:
            kind = fstype or DEFAULT_FILESYSTEM
            await self.host.mkfs(device, kind)
            return kind
        if found.type == UNKNOWN or (fstype and found.type != fstype):
            text = f"failed to mount the volume as {fstype or DEFAULT_FILESYSTEM}: it contains {found.type}"
            raise FailedPrecondition(f"{text}, and data is never formatted over")
        return found.type

    async def _repair(self, device: str, kind: str) -> None:
        try:
            await self.host.fsck(device, kind)
        except WrongState as error:
            raise Internal(str(error)) from error

    async def unstage(self, target: str) -> None:
        """Nothing mounted there is fine."""
        await self._unmount(target)

    async def publish(
        self, staging: str, target: str, *, readonly: bool = False, alone: bool = False
    ) -> None:
        """Bind the staged file system to `target`; with `alone`, refuse a second target."""
        table = await self.host.mounts()
        staged = table.at(staging)
        if staged is None:
            raise FailedPrecondition(f"nothing is staged at {staging}")
        held = table.at(target)
        if held is not None:
            if (held.device, held.root) != (staged.device, staged.root):
                raise AlreadyExists(f"{target} is taken by {held.source}")
            if held.readonly != (readonly or staged.readonly):
                raise AlreadyExists(f"{target} is published {'read-only' if held.readonly else 'writable'}")
            return
        elsewhere = table.siblings(staging)
        if alone and elsewhere:
            raise FailedPrecondition(
                f"the volume is published at {elsewhere[0]}, and it is for one writer only"
            )
        await self.host.call(os.makedirs, target, 0o750, True)
        await self.host.bind(staging, target, readonly=readonly)

    async def publish_block(self, device: str, target: str) -> None:
        """Bind the device's node to the file `target`."""
        number = await self.host.call(_block_number, device)
        if number is None:
            raise FailedPrecondition(f"{device} is not a block device")
        if await self.host.is_mount(target):
            if await self.host.call(_block_number, target) != number:
                raise AlreadyExists(f"{target} shows another device than {device}")
            return
        await self.host.call(_make_file, target)
        await self.host.bind(device, target)

    async def unpublish(self, target: str) -> None:
        """Unmount and delete the target; it may be gone already."""
        await self._unmount(target)
        try:
            await self.host.call(_remove_target, target)
        except OSError as error:
            raise Internal(f"{target} cannot be removed: {error.strerror}") from error

    async def _unmount(self, target: str) -> None:
        try:
            while await self.host.is_mount(target):
                if not await self.host.unmount(target):
                    return
        except OSError as error:
            raise Internal(f"{target} cannot be unmounted: {error.strerror}") from error

    async def usage(self, path: str) -> list[v1.VolumeUsage]:
        """Bytes and inodes of a file system, or the size of a block device."""
        unit = v1.VolumeUsage
        if not await self.host.is_mount(path):
            raise NotFound(f"nothing is published at {path}")
        if await self.host.call(_block_number, path) is not None:
            return [unit(unit=unit.BYTES, total=await self.host.size_of(path))]
        s = await self.host.stats(path)
        return [
            unit(unit=unit.BYTES, total=s.capacity, available=s.available, used=s.used),
            unit(unit=unit.INODES, total=s.inodes, available=s.inodes_free, used=s.inodes_used),
        ]

    async def grow(self, path: str, needed: int = 0) -> int:
        """Let what is published at `path` fill its device; the device's size in bytes."""
        if await self.host.call(_block_number, path) is not None:
            return await self._grown(path, needed)
        entry = (await self.host.mounts()).at(path)
        if entry is None:
            raise NotFound(f"nothing is published at {path}")
        size = await self._grown(entry.source, needed)
        await self.host.grow(entry.source, path, entry.fstype)
        return size

    async def _grown(self, device: str, needed: int) -> int:
        size = await self.host.size_of(device)
        if size < needed:
            raise Internal(f"{device} has {size} bytes, {needed} are wanted")
        return size


def mount_options(fstype: str, options: Sequence[str]) -> list[str]:
    # A copy of a volume has its original's UUID, and xfs refuses to mount one UUID twice.
    return [*options, "nouuid"] if fstype == "xfs" and "nouuid" not in options else list(options)


def _device_number(path: str) -> str:
    number = os.stat(path).st_rdev
    return f"{os.major(number)}:{os.minor(number)}"


def _block_number(path: str) -> str | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" if stat.S_ISBLK(found.st_mode) else None


def _make_file(path: str) -> None:
    os.makedirs(os.path.dirname(path), 0o750, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640))


def _remove_target(path: str) -> None:
    # Never recursive: if it were still a mount after all, this must not touch what is in it.
    with suppress(FileNotFoundError):
        os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
