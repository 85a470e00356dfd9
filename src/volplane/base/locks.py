"""A lock between processes that ends with its holder, even after SIGKILL. The lock file names the holder."""

from __future__ import annotations

import fcntl
import os


class LockHeld(Exception):
    def __init__(self, what: str, pid: int) -> None:
        super().__init__(f"{what} is in use by {f'process {pid}' if pid else 'another process'}")
        self.pid = pid  # 0: not written to the file yet


def lock(path: str, what: str = "") -> int:
    """Take the lock. Returns a descriptor that holds it until closed. Raises LockHeld, OSError.

    `what` names the locked resource in error messages; by default, the path.
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


def find_holder(path: str) -> int | None:
    """The process that holds the lock: its pid, 0 if it is not known, None if it is free.

    Takes no lock itself, which a process that starts at this moment would find held.
    """
    try:
        with open(path, "rb") as file:
            inode, text = os.fstat(file.fileno()).st_ino, file.read(32).strip()
    except OSError:
        return None
    with open("/proc/locks") as table:
        held = any(line.split()[5].rpartition(":")[2] == str(inode) for line in table if " FLOCK " in line)
    if not held:
        return None
    return int(text) if text.isdigit() else 0
