"""A mark on a device while a file system is being made there.

A mkfs that is killed half-way leaves pieces which nobody can tell from somebody's data, and a disk that is
never formatted over would be lost to its owner. So a mark is written first, where no mkfs writes, and taken
off before anybody can mount: pieces of which no tool can make a file system are nobody's data where the mark
is. Every mkfs writes its superblock last, so a file system that is found counts, whatever the mark says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LENGTH = 4096
MIN_DEVICE_SIZE = 1 << 20  # bytes of a device that is worth it


def marker_offset(size: int) -> int:
    """Behind the tables that ext has at the start of its groups and xfs of its parts, far from every copy of
    a superblock, and beyond the first chunks of btrfs.
    """
    return (size * 13 // 16 + min(48 << 20, size // 64)) // LENGTH * LENGTH


def has_marker(descriptor: int, size: int) -> bool:
    return size >= MIN_DEVICE_SIZE and os.pread(descriptor, LENGTH, marker_offset(size)) == _marker_bytes(
        size
    )


@contextmanager
def marker_during_mkfs(device: str, is_blank: Callable[[int, int], bool]) -> Iterator[None]:
    """Around mkfs. If it dies half-way the mark stays, and the next one begins anew."""
    with _open_synchronous(device, os.O_EXCL) as (descriptor, size):  # never on what somebody has mounted
        if size >= MIN_DEVICE_SIZE:
            os.pwrite(descriptor, _marker_bytes(size), marker_offset(size))
    try:
        yield
    except Exception:
        if _is_untouched(device, is_blank):  # somebody may put it to another use
            _remove_marker(device)
        raise
    _remove_marker(device)


def _is_untouched(device: str, is_blank: Callable[[int, int], bool]) -> bool:
    with _open_synchronous(device) as (descriptor, size):
        return is_blank(descriptor, size)


def _remove_marker(device: str) -> None:
    """Unless mkfs has written there: then it is a piece of the file system."""
    with _open_synchronous(device) as (descriptor, size):
        if has_marker(descriptor, size):
            os.pwrite(descriptor, bytes(LENGTH), marker_offset(size))


def _marker_bytes(size: int) -> bytes:
    text = b"volplane: a file system is being made on this device of %d bytes\n" % size
    return text.ljust(LENGTH, b"\0")


@contextmanager
def _open_synchronous(device: str, flags: int = 0) -> Iterator[tuple[int, int]]:
    """What is written is on the disk at once: neither may mkfs overtake its mark, nor a user's data the end
    of it.
    """
    descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC | os.O_DSYNC | flags)
    try:
        yield descriptor, os.lseek(descriptor, 0, os.SEEK_END)
    finally:
        os.close(descriptor)
