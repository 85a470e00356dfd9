"""Disk space: what a start needs, and a reserve for a full disk.

The reserve is an empty file of a fixed size next to the database. On a full disk it is removed, so that
objects can still be deleted and changed. It is created again as soon as the disk has space for it and for new
objects.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import ExitStack, suppress

from volplane.store.contract import StoreFull

RESERVE = 16 << 20  # bytes
NEEDED = 4 << 20  # bytes that must be free, besides the reserve, to open the database
RESUME = 8 << 20  # bytes that must be free, besides the reserve, before objects can be created again
PAGES = 2 << 20  # bytes of the reserve that become free pages of the database
LOG = 3 << 20  # bytes of the reserve for the database's log
SLICE = 256 << 10  # bytes of the reserve that are free at once while it is spent
INDEX = 512 << 10  # bytes of the log's index that are allocated in advance

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE: allocate beyond the end of the file
_libc = ctypes.CDLL(None, use_errno=True)


class SpaceReserve:
    def __init__(self, database: str) -> None:
        self._database = database
        self.path = f"{database}.reserve"
        self.directory = os.path.dirname(os.path.abspath(database))

    def require_space(self) -> None:
        """Raise StoreFull if the disk has too little space to open the database.

        SQLite maps the index of its log into memory. On a full disk the kernel kills a process that writes
        there (SIGBUS), so the check must come before the database is opened.
        """
        needed = NEEDED + (0 if self._is_complete() else RESERVE)
        found = free_space(self.directory)
        if found < needed:
            raise StoreFull(
                f"{_mib(found)} MiB are free in {self.directory}, at least {_mib(needed)} MiB are needed: "
                "free some space and start again"
            )

    def make(self, spare: int = 0) -> bool:
        """Create the reserve if `spare` more bytes are free. Returns whether it exists."""
        if self._is_complete():
            return True
        if free_space(self.directory) < RESERVE + spare:
            return False
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE)
        except OSError as error:
            self.release()
            if error.errno in NO_SPACE:
                return False
            raise
        finally:
            os.close(descriptor)
        return True

    def release(self) -> None:
        with suppress(OSError):
            os.unlink(self.path)

    def spend(self, database: int) -> None:
        """Allocate the reserve's space for the log and the open `database`.

        One slice after the other: space that is free for a moment may go to a program that writes without
        end, so only a slice at a time is free, never the whole reserve.
        """
        with ExitStack() as stack:
            stack.callback(self.release)
            stack.enter_context(suppress(OSError))  # what is left is released
            reserve = _open_until_end(stack, self.path)
            log = _open_until_end(stack, f"{self._database}-wal")
            wanted = [(log, LOG), (database, RESERVE - LOG)]
            slices = [
                (file, offset)
                for file, size in wanted
                for offset in range(os.fstat(file).st_size, os.fstat(file).st_size + size, SLICE)
            ]
            for left in range(RESERVE - SLICE, -1, -SLICE):
                os.ftruncate(reserve, left)
                if slices and _allocate_behind(*slices[0], SLICE):
                    del slices[0]

    def has_run_out(self) -> bool:
        """Whether a write that failed for an unknown reason may have failed because the disk is full."""
        try:
            return free_space(self.directory) < RESERVE
        except OSError:  # the disk does not answer
            return False

    def _is_complete(self) -> bool:
        try:
            held = os.stat(self.path)
        except FileNotFoundError:
            return False
        return held.st_blocks * 512 >= RESERVE


def free_space(directory: str) -> int:
    """Bytes that this process may still write; some are reserved for root."""
    info = os.statvfs(directory)
    return (info.f_bfree if os.geteuid() == 0 else info.f_bavail) * info.f_frsize


def allocate_index(database: str) -> int:
    """Allocate the index of an open database's log. Returns a descriptor to close after the database.

    Closing it earlier would drop SQLite's locks on that file.
    """
    descriptor = os.open(f"{database}-shm", os.O_RDWR | os.O_CLOEXEC)
    with suppress(OSError):
        # SQLite touches each page once, which leaves holes on a file system with small blocks.
        os.posix_fallocate(descriptor, 0, INDEX)
    return descriptor


def _open_until_end(stack: ExitStack, path: str) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    return descriptor


def _allocate_behind(descriptor: int, start: int, size: int) -> bool:
    start_, size_ = ctypes.c_int64(start), ctypes.c_int64(size)
    return bool(_libc.fallocate64(descriptor, _KEEP_SIZE, start_, size_) == 0)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f}".removesuffix(".0")
