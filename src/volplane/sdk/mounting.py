"""What nearly every node service does: format, mount, bind, publish a block device, undo it, measure it.

Everything may run twice: each step checks first what exists. A device is formatted only if it is proven
blank. The driver creates and deletes targets, the kubelet their parents. Consecutive steps run in one call on
a thread of the host: switching threads costs as much as reading the mount table.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from volplane.csi import v1
from volplane.host import (
    UNKNOWN,
    FilesystemNeedsRepair,
    Host,
    HostCommandFailed,
    MountEntry,
    MountTable,
    NodePaths,
    UnreadableDevice,
    devices,
    filesystems,
    mounts,
)
from volplane.sdk.bounds import check_below
from volplane.sdk.errors import AlreadyExists, FailedPrecondition, Internal, InvalidArgument, NotFound
from volplane.sdk.locks import PathLocks

DEFAULT_FILESYSTEM = "ext4"


class Mounter:
    def __init__(self, host: Host) -> None:
        self.host = host
        self._targets = PathLocks()  # the kernel does not unmount a target while its usage is read

    async def stage(
        self,
        device: str,
        target: str,
        fstype: str = "",
        options: Sequence[str] = (),
        *,
        format_options: Sequence[str] = (),
    ) -> None:
        """Format `device` if it is blank, check it, and mount it at `target`.

        `format_options`: additional arguments of mkfs.
        """
        unmounted = await self.host.call(_stage, device, target, fstype, options, format_options)
        if unmounted is not None:
            device, kind = unmounted
            try:
                await self.host.mount(device, target, kind, mount_options(kind, options))
            except (OSError, HostCommandFailed) as error:
                raise Internal(f"{device} cannot be mounted at {target} as {kind}: {error}") from error

    async def unstage(self, target: str) -> None:
        """Unmount the target, if it is mounted."""
        await self.host.call(_unmount, target)

    async def publish(
        self, staging: str, target: str, *, readonly: bool = False, exclusive: bool = False
    ) -> None:
        """Bind the staged file system to `target`; with `exclusive`, refuse a second target."""
        await self.host.call(_publish, staging, target, readonly=readonly, exclusive=exclusive)

    async def publish_directory(
        self, source: str, target: str, *, readonly: bool = False, exclusive: bool = False
    ) -> None:
        """Bind a directory of the machine to `target`, for drivers that stage nothing."""
        await self.host.call(_publish_directory, source, target, readonly=readonly, exclusive=exclusive)

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
        """Unmount and delete the target, if it exists."""
        async with self._targets.hold(target):
            await self.host.call(_unpublish, target)

    async def usage(self, path: str) -> list[v1.VolumeUsage]:
        """Bytes and inodes of a file system, or the size of a block device."""
        async with self._targets.hold(path):
            return await self._usage(path)

    async def _usage(self, path: str) -> list[v1.VolumeUsage]:
        unit = v1.VolumeUsage
        if not await self.host.is_mount(path):
            raise NotFound(f"nothing is published at {path}")
        if await self.host.call(_block_number, path) is not None:
            return [unit(unit=unit.BYTES, total=await self.host.size_of(path))]
        s = await self.host.stats(path)
        if not await self.host.is_mount(path):  # unpublished meanwhile: these are the parent's numbers
            raise NotFound(f"nothing is published at {path} any more")
        return [
            unit(unit=unit.BYTES, total=s.capacity, available=s.available, used=s.used),
            unit(unit=unit.INODES, total=s.inodes, available=s.inodes_free, used=s.inodes_used),
        ]

    async def grow(self, path: str, needed: int = 0) -> int:
        """Grow the file system at `path` to the size of its device; returns the size in bytes."""
        if await self.host.call(_block_number, path) is not None:
            return await self._check_device_size(path, needed)
        entry = (await self.host.mounts()).at(path)
        if entry is None:
            raise NotFound(f"nothing is published at {path}")
        size = await self._check_device_size(entry.source, needed)
        if not await self.host.call(filesystems.fills_device, entry.source, entry.fstype):
            await self._grow_filesystem(entry, path)
        return size

    async def _grow_filesystem(self, entry: MountEntry, path: str) -> None:
        try:
            await self.host.grow(entry.source, path, entry.fstype)
        except HostCommandFailed as error:
            if entry.fstype.startswith("ext"):
                # The kernel may not allow it; then it grows when the volume is staged again.
                text = f"{entry.fstype} at {path} cannot grow while it is mounted: {error}"
                raise FailedPrecondition(text) from error
            raise Internal(f"{entry.fstype} at {path} cannot grow: {error}") from error

    async def find_problem(self, path: str) -> str:
        """What is wrong with a published volume; "" if nothing is."""
        return await self.host.call(_find_problem, path)

    async def _check_device_size(self, device: str, needed: int) -> int:
        size = await self.host.size_of(device)
        if size < needed:
            raise Internal(f"{device} has {size} bytes, {needed} are required")
        return size


def node_path(paths: NodePaths, path: str, field: str) -> str:
    """The real path of a path in a request, which must be below the kubelet's directory.

    Raises InvalidArgument, or NotFound for a relative volume path.
    """
    if field == "volume_path" and not path.startswith("/"):
        raise NotFound(f"nothing is published at {path}")
    root = paths.find_volume_root(path)
    if not root:
        raise InvalidArgument(f'{field} "{path}" is not below {paths.wire_root}')
    real = paths.real(path)
    check_below(real, root, field, shown=path)
    return real


def mount_options(fstype: str, options: Sequence[str]) -> list[str]:
    # A copy of a volume has the UUID of the original, and xfs does not mount a UUID twice.
    return [*options, "nouuid"] if fstype == "xfs" and "nouuid" not in options else list(options)


def _stage(
    device: str, target: str, fstype: str, options: Sequence[str], format_options: Sequence[str]
) -> tuple[str, str] | None:
    """Returns the device and the type of a file system that only a mount helper can mount; else None."""
    device = os.path.realpath(device)
    kind, small = _prepare_filesystem(device, target, fstype, format_options, repair="ro" not in options)
    if not kind:
        return None
    if mounts.helper_for(kind):
        return device, kind
    try:
        mounts.mount(device, target, kind, mount_options(kind, options))
    except OSError as error:
        raise Internal(f"{device} cannot be mounted at {target} as {kind}: {error.strerror}") from error
    if small:
        filesystems.grow(device, target, kind)
    return None


def _prepare_filesystem(
    device: str, target: str, fstype: str, format_options: Sequence[str], *, repair: bool
) -> tuple[str, bool]:
    """Prepare the file system of a device for mounting; returns its type, "" if it is mounted already.

    Also returns whether it must grow after mounting: a copy may be on a larger disk than its source.
    """
    os.makedirs(target, 0o750, exist_ok=True)
    mounted = mounts.read_table().at(target)
    if mounted is not None:
        _check_staged(mounted, device, fstype)
        return "", False
    kind, fresh = _probe_or_format(device, fstype, format_options)
    if fresh or not repair:
        return kind, False
    try:
        filesystems.fsck(device, kind)
    except FilesystemNeedsRepair as error:
        raise Internal(str(error)) from error
    if filesystems.fills_device(device, kind):
        return kind, False
    if not kind.startswith("ext"):
        return kind, True
    # A mounted ext file system grows only with CAP_SYS_RESOURCE, an unmounted one without it.
    filesystems.grow(device, "", kind)
    return kind, False


def _check_staged(mounted: MountEntry, device: str, fstype: str) -> None:
    if mounted.device != _device_number(device) and (mounted.fstype, mounted.source) != ("btrfs", device):
        raise AlreadyExists(f"{mounted.target} is used by {mounted.source}, not by {device}")
    if fstype and mounted.fstype != fstype:
        raise AlreadyExists(f"{mounted.target} is mounted as {mounted.fstype}, not as {fstype}")


def _probe_or_format(device: str, fstype: str, format_options: Sequence[str]) -> tuple[str, bool]:
    """The file system on the device, and whether it was created because the device is blank."""
    try:
        found = filesystems.probe(device)
    except UnreadableDevice as error:
        raise Internal(f"{device} cannot be read: {error.strerror}") from error
    if found is None:
        kind = fstype or DEFAULT_FILESYSTEM
        filesystems.mkfs(device, kind, options=format_options)
        return kind, True
    if found.type == UNKNOWN or (fstype and found.type != fstype):
        text = f"failed to mount the volume as {fstype or DEFAULT_FILESYSTEM}: it contains {found.type}"
        raise FailedPrecondition(f"{text}; a device with data is never formatted")
    return found.type, False


def _publish(staging: str, target: str, *, readonly: bool, exclusive: bool) -> None:
    table = mounts.read_table()
    staged, mounted = table.at(staging), table.at(target)
    if staged is None:
        raise FailedPrecondition(f"nothing is staged at {staging}")
    if mounted is not None:
        if (mounted.device, mounted.root) != (staged.device, staged.root):
            raise AlreadyExists(f"{target} is used by {mounted.source}")
        if mounted.readonly != (readonly or staged.readonly):
            raise AlreadyExists(f"{target} is published {'read-only' if mounted.readonly else 'writable'}")
        return
    if exclusive and (elsewhere := table.siblings(staging)):
        raise FailedPrecondition(f"the volume is published at {elsewhere[0]}, and has a single writer")
    os.makedirs(target, 0o750, exist_ok=True)
    mounts.bind(staging, target, readonly=readonly, recursive=True)


def _publish_directory(source: str, target: str, *, readonly: bool, exclusive: bool) -> None:
    try:
        directory = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"there is no directory {source}") from error
    try:
        publish_open_directory(directory, target, readonly=readonly, exclusive=exclusive)
    finally:
        os.close(directory)


def publish_open_directory(directory: int, target: str, *, readonly: bool, exclusive: bool) -> None:
    """Bind the directory of an open descriptor, whatever its path refers to by now. Blocks."""
    table = mounts.read_table()
    mounted = table.at(target)
    if mounted is not None:
        if not os.path.samestat(os.fstat(directory), os.stat(target)):
            raise AlreadyExists(f"{target} is used by {mounted.root} of {mounted.source}")
        if mounted.readonly != readonly:
            raise AlreadyExists(f"{target} is published {'read-only' if mounted.readonly else 'writable'}")
        return
    if exclusive and (elsewhere := _find_bind_target(table, directory)):
        raise FailedPrecondition(f"the volume is published at {elsewhere}, and has a single writer")
    os.makedirs(target, 0o750, exist_ok=True)
    mounts.bind("", target, readonly=readonly, recursive=False, directory=directory)


def _find_bind_target(table: MountTable, directory: int) -> str:
    """A target that the directory is bound to, or ""."""
    name, ours = os.path.basename(os.readlink(f"/proc/self/fd/{directory}")), os.fstat(directory)
    for entry in table.filter_lines(f"/{name} "):
        with suppress(OSError):
            if entry.root.endswith(f"/{name}") and os.path.samestat(os.stat(entry.target), ours):
                return entry.target
    return ""


def _find_problem(path: str) -> str:
    entry = mounts.read_table().at(path)
    if entry is None:
        return f"nothing is mounted at {path}"
    if not entry.readonly and "ro" in entry.super_options:
        return f"the file system of {entry.source} is read-only after errors"
    if entry.source.startswith("/dev/loop") and not devices.backing_file(entry.source):
        return f"{entry.source} has no backing file any more"
    return ""


def _unpublish(target: str) -> None:
    _unmount(target)
    try:
        _remove_target(target)
    except OSError as error:
        raise Internal(f"{target} cannot be removed: {error.strerror}") from error


def _unmount(target: str) -> None:
    try:
        while mounts.is_mount(target) and mounts.unmount(target):
            pass
    except OSError as error:
        raise Internal(f"{target} cannot be unmounted: {error.strerror}") from error


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
    # Never recursive: if it were still mounted, this must not delete its contents.
    with suppress(FileNotFoundError):
        os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
