"""One process at a time: a lock that dies with its holder, even under SIGKILL; its file tells who that is."""

from __future__ import annotations

import fcntl
import os


class Locked(Exception):
    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid}" if pid else "another process")
        self.pid = pid  # 0: it has not said yet


def lock(path: str) -> int:
    """The descriptor that holds the lock until it is closed. Raises Locked, OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).strip()
        os.close(descriptor)
        raise Locked(int(holder) if holder.isdigit() else 0) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor
