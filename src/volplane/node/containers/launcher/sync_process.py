"""A process that writes containers' files to the disk (fsync), so that no start or exit waits for it.

One for all containers of a launcher; it ends when the launcher and the last of its shims have ended. It
waits a moment before it syncs: by then short-lived containers are gone, and of others two files are synced
at once.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

from . import kernel

_LONGEST = 4096
_BATCH_DELAY = 0.5  # seconds
_MAX_BATCH = 256  # directories; with more it does not wait
_FILES = ("container.json", "exit.json", "")  # and the directory itself


class SyncProcess:
    """The connection to that process; shims inherit it."""

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
        """Sync a container's files soon; at once, here, if that process is gone or its queue is full."""
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
    """Write a container's files and their names to the disk; skip files that no longer exist."""
    for name in _FILES:
        with suppress(OSError):
            descriptor = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
