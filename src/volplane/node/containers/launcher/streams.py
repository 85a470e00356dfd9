"""The ends of a command's standard streams: what pid 1 is given of them, and what the shim keeps."""

from __future__ import annotations

import errno
import os
import socket

from .spec import Spec


class ContainerStreams:
    """Made by the shim. A terminal is opened by pid 1, where the container has its own, and sent back."""

    def __init__(self, spec: Spec) -> None:
        self.outputs: dict[str, int] = {}
        self.stdin = self.terminal = -1
        self._terminal_socket: socket.socket | None = None
        if spec["tty"]:
            self._terminal_socket, theirs = socket.socketpair()
            self.pid1_descriptors = [theirs.detach()]
            return
        stdout, stderr = os.pipe(), os.pipe()
        self.outputs = {"stdout": stdout[0], "stderr": stderr[0]}
        self.pid1_descriptors = [stdout[1], stderr[1]]
        if spec["stdin"]:
            stdin, self.stdin = os.pipe()
        else:  # the machine's own: what the container has at that place is the container's
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.pid1_descriptors.insert(0, stdin)

    def close_pid1_descriptors(self) -> None:
        """Let go of what pid 1 has by now."""
        for descriptor in self.pid1_descriptors:
            os.close(descriptor)

    def receive_terminal(self, spec: Spec) -> None:
        """Pid 1 has opened it, or has failed."""
        if self._terminal_socket is None:
            return
        _, terminals, _, _ = socket.recv_fds(self._terminal_socket, 64, 1, socket.MSG_CMSG_CLOEXEC)
        self._terminal_socket.close()
        if terminals:  # otherwise it failed, and says how elsewhere
            (self.terminal,) = terminals
            self.outputs = {"stdout": self.terminal}
            self.stdin = os.dup(self.terminal) if spec["stdin"] else -1


def count_descriptors(spec: Spec) -> int:
    """How many descriptors pid 1 is given for them."""
    return 1 if spec["tty"] else 3


def read(descriptor: int, limit: int) -> bytes:
    """What is there, nothing at the end. Raises BlockingIOError."""
    try:
        return os.read(descriptor, limit)
    except OSError as error:
        if error.errno != errno.EIO:  # what a terminal says when nobody has its other end any more
            raise
        return b""
