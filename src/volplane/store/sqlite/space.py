"""Room on the disk: what a start needs, and the reserve that is spent when nothing else is left.

The reserve is a file beside the database that holds nothing. On a full disk it is removed, so that objects
can still be deleted and changed; it is made again as soon as the disk has room for it and for new objects.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress

from volplane.store.contract import StoreFull

RESERVE = 16 << 20  # bytes
NEEDED = 4 << 20  # bytes that must be free besides the reserve before the database is opened
RESUME = 8 << 20  # bytes that must be free besides the reserve before objects may be created again
PAGES = 2 << 20  # bytes of the reserve that become free pages of the database
LOG = 3 << 20  # bytes of the reserve by which the database's log may grow meanwhile
INDEX = 512 << 10  # bytes of the log's index that are allocated in advance

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

_KEEP_SIZE = 1  # of fallocate(2): what is allocated lies behind the file's end
_libc = ctypes.CDLL(None, use_errno=True)


class SpaceReserve:
    def __init__(self, database: str) -> None:
        self._database = database
        self.path = f"{database}.reserve"
        self.directory = os.path.dirname(os.path.abspath(database))

    def require_space(self) -> None:
        """Raise Full when the disk has too little room to open the database.

        SQLite maps the index of its log into memory. On a full disk the kernel ends a process that writes
        there (SIGBUS), so that it is too late to find out after the database is open.
        """
        needed = NEEDED + (0 if self._is_complete() else RESERVE)
        found = free_space(self.directory)
        if found < needed:
            raise StoreFull(
                f"{_mib(found)} MiB are free in {self.directory}, at least {_mib(needed)} MiB are needed: "
                "free some space and start again"
            )

    def make(self, spare: int = 0) -> bool:
        """Whether the reserve is there; it is not made unless `spare` bytes more are free."""
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
        """Give the reserve to the database's log and to the open `database`, before others on this disk
        take it.
        """
        self.release()
        with suppress(OSError):
            log = os.open(f"{self._database}-wal", os.O_RDWR | os.O_CLOEXEC)
            try:
                os.posix_fallocate(log, 0, os.fstat(log).st_size + LOG)
            finally:
                os.close(log)
        end, size = os.fstat(database).st_size, RESERVE - LOG
        while size > 4096 and not _allocate_behind(database, end, size):
            size //= 2

    def has_run_out(self) -> bool:
        """Whether a write that failed for an unknown reason may have failed for want of room."""
        try:
            return free_space(self.directory) < RESERVE
        except OSError:  # a disk that does not even answer this
            return False

    def _is_complete(self) -> bool:
        try:
            held = os.stat(self.path)
        except FileNotFoundError:
            return False
        return held.st_blocks * 512 >= RESERVE


def free_space(directory: str) -> int:
    """Bytes that this process may still write; the kernel keeps some for root alone."""
    info = os.statvfs(directory)
    return (info.f_bfree if os.geteuid() == 0 else info.f_bavail) * info.f_frsize


def allocate_index(database: str) -> int:
    """Allocate the index of an open database's log; the descriptor to close after the database.

    Closing it earlier would drop the locks that SQLite has on that file.
    """
    descriptor = os.open(f"{database}-shm", os.O_RDWR | os.O_CLOEXEC)
    with suppress(OSError):
        # SQLite touches each page once, which on a file system with small blocks leaves holes in it.
        os.posix_fallocate(descriptor, 0, INDEX)
    return descriptor


def _allocate_behind(descriptor: int, start: int, size: int) -> bool:
    start_, size_ = ctypes.c_int64(start), ctypes.c_int64(size)
    return bool(_libc.fallocate64(descriptor, _KEEP_SIZE, start_, size_) == 0)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f}".removesuffix(".0")
