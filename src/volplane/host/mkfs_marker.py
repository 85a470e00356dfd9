"""A marker on a device while a file system is being made there.

An interrupted mkfs leaves data that looks like user data, and such a disk would never be formatted
again. So a marker is written first, where no mkfs writes, and removed before the file system can be mounted.
Where the marker is, data that is not a file system may be overwritten. Every mkfs writes its superblock
last, so a file system that is recognised counts, with or without the marker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LENGTH = 4096
MIN_DEVICE_SIZE = 1 << 20  # bytes; smaller devices get no marker


def marker_offset(size: int) -> int:
    """A position that no mkfs writes to.

    It is behind the tables at the start of ext block groups and xfs allocation groups, far from all copies of
    superblocks, and beyond the first chunks of btrfs.
    """
    return (size * 13 // 16 + min(48 << 20, size // 64)) // LENGTH * LENGTH


def has_marker(descriptor: int, size: int) -> bool:
    return size >= MIN_DEVICE_SIZE and os.pread(descriptor, LENGTH, marker_offset(size)) == _marker_bytes(
        size
    )


@contextmanager
def marker_during_mkfs(device: str, is_blank: Callable[[int, int], bool]) -> Iterator[None]:
    """Hold the marker during mkfs. If mkfs is interrupted the marker stays, and the next mkfs starts over."""
    with _open_synchronous(device, os.O_EXCL) as (descriptor, size):  # fails on a mounted device
        if size >= MIN_DEVICE_SIZE:
            os.pwrite(descriptor, _marker_bytes(size), marker_offset(size))
    try:
        yield
    except Exception:
        if _is_untouched(device, is_blank):  # leave nothing on a device that may be used otherwise
            _remove_marker(device)
        raise
    _remove_marker(device)


def _is_untouched(device: str, is_blank: Callable[[int, int], bool]) -> bool:
    with _open_synchronous(device) as (descriptor, size):
        return is_blank(descriptor, size)


def _remove_marker(device: str) -> None:
    """Remove the marker, unless mkfs has written there: then it belongs to the file system."""
    with _open_synchronous(device) as (descriptor, size):
        if has_marker(descriptor, size):
            os.pwrite(descriptor, bytes(LENGTH), marker_offset(size))


def _marker_bytes(size: int) -> bytes:
    text = b"volplane: a file system is being made on this device of %d bytes\n" % size
    return text.ljust(LENGTH, b"\0")


@contextmanager
def _open_synchronous(device: str, flags: int = 0) -> Iterator[tuple[int, int]]:
    """Open with O_DSYNC: the marker must be on disk before mkfs starts, and gone before user data comes."""
    descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC | os.O_DSYNC | flags)
    try:
        yield descriptor, os.lseek(descriptor, 0, os.SEEK_END)
    finally:
        os.close(descriptor)
