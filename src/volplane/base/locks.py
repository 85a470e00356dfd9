"""One process at a time: a lock that dies with its holder, even under SIGKILL; its file tells who that is."""

from __future__ import annotations

import fcntl
import os


class LockHeld(Exception):
    def __init__(self, what: str, pid: int) -> None:
        super().__init__(f"{what} is in use by {f'process {pid}' if pid else 'another process'}")
        self.pid = pid  # 0: it has not said yet


def lock(path: str, what: str = "") -> int:
    """The descriptor that holds the lock until it is closed. Raises Locked, OSError.

    `what` is locked, in the words of a message; else the file itself.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).strip()
        os.close(descriptor)
        raise LockHeld(what or path, int(holder) if holder.isdigit() else 0) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor
