"""Copy disk images: by reflink where the file system supports it, else by copying the parts with data.

A reflink is a consistent snapshot, even if the source is being written to. A copy takes time, so the caller
must check that the disk was not written to meanwhile: compare `read_write_counters` before and after.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from volplane.base import failpoint

_FICLONE, _FIFREEZE, _FITHAW = 0x40049409, 0xC0045877, 0xC0045878
_CHUNK = 32 << 20
# The file system cannot share blocks, or not between these two files.
_REFLINK_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS})
_libc = ctypes.CDLL(None, use_errno=True)

ProgressCallback = Callable[[int], None]


def _ignore_progress(percent: int) -> None:
    return None


@failpoint.effect("host:copy")
def copy(
    source: str, target: str, *, report: ProgressCallback = _ignore_progress, share: bool = True
) -> bool:
    """Make a new file with the same content, synced to disk. Return whether its blocks are shared.

    If it fails, the new file is removed.
    """
    with _open_descriptor(source, os.O_RDONLY) as old, _create_file(target) as new:
        shared = share and reflink(old, new)
        if not shared:
            os.ftruncate(new, os.fstat(old).st_size)
            _copy_data(old, new, report)
        os.fsync(new)
    report(100)
    return shared


def reflink(old: int, new: int) -> bool:
    try:
        fcntl.ioctl(new, _FICLONE, old)
    except OSError as error:
        if error.errno in _REFLINK_UNSUPPORTED:
            return False
        raise
    return True


def _copy_data(old: int, new: int, report: ProgressCallback) -> None:
    total, done = max(1, os.fstat(old).st_blocks * 512), 0
    for start, end in extents(old):
        for offset in range(start, end, _CHUNK):
            done += _copy_range(old, new, offset, min(_CHUNK, end - offset))
            report(min(99, done * 100 // total))


def _copy_range(old: int, new: int, offset: int, length: int) -> int:
    left = length
    while left:
        copied = os.copy_file_range(old, new, left, offset, offset)
        if not copied:  # the source ends here
            break
        offset, left = offset + copied, left - copied
    return length - left


def extents(file: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each part with data; everything else reads as zeros."""
    offset = 0
    while True:
        try:
            start = os.lseek(file, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        offset = os.lseek(file, start, os.SEEK_HOLE)
        yield start, offset


def count_allocated_bytes(path: str) -> int:
    """Bytes that a sparse file takes on the disk."""
    return os.stat(path).st_blocks * 512


def read_write_counters(device: str) -> tuple[int, ...]:
    """Writes and discards that a disk has completed, and the number in flight."""
    name = os.path.basename(os.path.realpath(device))
    with open(f"/sys/block/{name}/stat") as file:
        fields = [int(field) for field in file.read().split()]
    with open(f"/sys/block/{name}/inflight") as file:
        _, writing = file.read().split()
    # Completed writes and their sectors, completed discards and their sectors.
    return fields[4], fields[6], *fields[11:12], *fields[13:14], int(writing)


def is_quiescent(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    return before == after and not after[-1]


def flush(device: str) -> None:
    """Write the device's dirty pages to its file."""
    with _open_descriptor(device, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def sync(path: str) -> None:
    """Write everything in the file system at `path` to its device."""
    with _open_descriptor(path, os.O_RDONLY) as descriptor:
        if _libc.syncfs(descriptor) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)


@contextmanager
def freeze_filesystem(path: str) -> Iterator[None]:
    """Freeze the file system at `path`: writers wait, and it is consistent on its device."""
    with _open_descriptor(path, os.O_RDONLY) as descriptor:
        fcntl.ioctl(descriptor, _FIFREEZE, struct.pack("i", 0))
        try:
            yield
        finally:
            fcntl.ioctl(descriptor, _FITHAW, struct.pack("i", 0))


def thaw(path: str) -> bool:
    """Thaw a file system that a killed process left frozen; False if it was not frozen."""
    with _open_descriptor(path, os.O_RDONLY) as descriptor:
        try:
            fcntl.ioctl(descriptor, _FITHAW, struct.pack("i", 0))
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return False
            raise
    return True


@contextmanager
def _open_descriptor(path: str, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _create_file(path: str) -> Iterator[int]:
    with _open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as descriptor:
        os.fchmod(descriptor, 0o600)
        try:
            yield descriptor
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise
