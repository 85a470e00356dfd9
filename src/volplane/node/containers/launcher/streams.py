"""The standard streams of a container's command: the ends that pid 1 gets and those that the shim keeps."""

from __future__ import annotations

import errno
import os
import socket

from .spec import Spec


class ContainerStreams:
    """Made by the shim. A terminal is opened by pid 1, in the container's devpts, and sent back."""

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
        else:  # the machine's: the container's /dev/null is not trusted
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.pid1_descriptors.insert(0, stdin)

    def close_pid1_descriptors(self) -> None:
        """Close our copies of the ends that pid 1 has received."""
        for descriptor in self.pid1_descriptors:
            os.close(descriptor)

    def receive_terminal(self, spec: Spec) -> None:
        """Receive the terminal that pid 1 has opened, if any."""
        if self._terminal_socket is None:
            return
        _, terminals, _, _ = socket.recv_fds(self._terminal_socket, 64, 1, socket.MSG_CMSG_CLOEXEC)
        self._terminal_socket.close()
        if terminals:  # otherwise pid 1 has failed and reports why
            (self.terminal,) = terminals
            self.outputs = {"stdout": self.terminal}
            self.stdin = os.dup(self.terminal) if spec["stdin"] else -1


def count_descriptors(spec: Spec) -> int:
    """How many descriptors of streams pid 1 gets."""
    return 1 if spec["tty"] else 3


def read(descriptor: int, limit: int) -> bytes:
    """Data that is available; b"" at the end. Raises BlockingIOError."""
    try:
        return os.read(descriptor, limit)
    except OSError as error:
        if error.errno != errno.EIO:  # EIO: all other ends of the terminal are closed
            raise
        return b""
