"""Writing files through to the disk, in a process of its own: nobody who starts or ends a container waits.

One for all containers of a launcher. It ends when the launcher and the last of its shims have. What it is
told it does a moment later: by then many a container is gone again, and of others there are two files to
write.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

from . import kernel

_LONGEST = 4096
_BATCH_DELAY = 0.5  # seconds
_MAX_BATCH = 256  # directories; with more of them it does not wait
_FILES = ("container.json", "exit.json", "")  # and the directory itself


class SyncProcess:
    """The way to that process; shims inherit it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            try:
                os.closerange(0, theirs.fileno())
                os.closerange(theirs.fileno() + 1, 1 << 20)
                _serve(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def sync_later(self, directory: str) -> None:
        """A container's files: in a moment; at once if that process is gone or has too much to do."""
        try:
            self._socket.send(os.fsencode(directory), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            fsync_container_files(directory)


def _serve(orders: socket.socket) -> None:
    kernel.set_title("volplane-sync")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while directory := orders.recv(_LONGEST):
        waiting = {directory}
        orders.settimeout(_BATCH_DELAY)
        with suppress(TimeoutError):
            while len(waiting) < _MAX_BATCH and (directory := orders.recv(_LONGEST)):
                waiting.add(directory)
        orders.settimeout(None)
        for directory in waiting:
            fsync_container_files(os.fsdecode(directory))


def fsync_container_files(directory: str) -> None:
    """Write a container's files and their names to the disk; what is not there by now is left out."""
    for name in _FILES:
        with suppress(OSError):
            descriptor = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
