"""A mark on a device while a file system is being made there.

A mkfs that is killed half-way leaves pieces which nobody can tell from somebody's data, and a disk that is
never formatted over would be lost to its owner. So a mark is written first, where no mkfs writes, and taken
off before anybody can mount: what bears the mark is nobody's data, whatever it looks like. The mark tells the
device's size, so that the image of a marked disk, kept as a file on a larger one, marks nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LENGTH = 4096
SMALLEST = 1 << 20  # bytes of a device that is worth it


def place(size: int) -> int:
    """Behind the tables that ext has at the start of its groups and xfs of its parts, far from every copy of
    a superblock, and beyond the first chunks of btrfs.
    """
    return (size * 13 // 16 + min(48 << 20, size // 64)) // LENGTH * LENGTH


def is_marked(descriptor: int, size: int) -> bool:
    return size >= SMALLEST and os.pread(descriptor, LENGTH, place(size)) == _mark(size)


@contextmanager
def marked(device: str) -> Iterator[None]:
    """Around mkfs. If it fails or dies the mark stays, and the next one begins anew."""
    _write(device, _mark)
    yield
    _write(device, lambda size: bytes(LENGTH))


def _mark(size: int) -> bytes:
    text = b"volplane: a file system is being made on this device of %d bytes\n" % size
    return text.ljust(LENGTH, b"\0")


def _write(device: str, what: Callable[[int], bytes]) -> None:
    """On the disk when this returns: neither may mkfs overtake its mark, nor a user's data the end of it."""
    descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC | os.O_DSYNC)
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        if size >= SMALLEST:
            os.pwrite(descriptor, what(size), place(size))
    finally:
        os.close(descriptor)
