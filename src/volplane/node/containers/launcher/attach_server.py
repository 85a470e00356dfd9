"""Attach, in the shim: clients receive a container's output and may write to its input.

Clients connect to a socket in the container's directory, which a restarted node finds again. Backpressure: a
client that does not read blocks the container for up to `_SEND_TIMEOUT` and is then disconnected. A command
that does not read its input blocks the clients that write to it, never its own output.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios
from contextlib import suppress

from .attach_protocol import (
    ATTACHED,
    END_INPUT,
    MAX_PACKET,
    RESIZE,
    SIZE_FORMAT,
    SOCKET_NAME,
    STDERR,
    STDIN,
    STDOUT,
)
from .spec import Spec
from .streams import ContainerStreams

_BACKLOG_LIMIT = 64 << 10  # bytes of output kept for the first client of a container with stdinOnce
_SEND_TIMEOUT = 10.0  # seconds for a client to read a packet
_CHANNELS = {"stdout": STDOUT, "stderr": STDERR}


class AttachServer:
    def __init__(self, listener: socket.socket, spec: Spec, ends: ContainerStreams) -> None:
        self.poll = select.poll()
        self._listener = listener
        self._stdin, self._terminal = ends.stdin, ends.terminal
        # A terminal is never closed: its input and its output are one descriptor.
        self._once = spec["stdin_once"] and not spec["tty"]
        self._clients: dict[int, socket.socket] = {}
        self._writers: set[int] = set()
        self._pending = b""  # input that the command has not read yet
        self._ending = False
        self._backlog: list[bytes] | None = [] if spec["stdin_once"] else None
        if self._stdin >= 0:
            os.set_blocking(self._stdin, False)
        self.poll.register(listener, select.POLLIN)

    def handle(self, descriptor: int) -> None:
        if descriptor == self._listener.fileno():
            self._accept()
        elif descriptor == self._stdin:
            self._write_input()
        elif descriptor in self._clients:  # it may have been disconnected in this round
            self._receive(self._clients[descriptor])

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.settimeout(_SEND_TIMEOUT)
        self._clients[client.fileno()] = client
        if not self._pending:
            self.poll.register(client, select.POLLIN)
        # With stdinOnce the first client is meant to see all of the output.
        unheard, self._backlog = self._backlog or [], None
        for packet in (bytes([ATTACHED]), *unheard):
            self._send(client, packet)

    def broadcast(self, stream: str, data: bytes) -> None:
        packet = bytes([_CHANNELS[stream]]) + data
        for client in list(self._clients.values()):
            self._send(client, packet)
        if self._backlog is not None:
            self._backlog.append(packet)
            while sum(map(len, self._backlog)) > _BACKLOG_LIMIT:
                del self._backlog[0]

    def _send(self, client: socket.socket, packet: bytes) -> None:
        try:
            client.sendall(packet)
        except OSError:  # disconnected, or it does not read
            if client.fileno() in self._clients:
                self._disconnect(client)

    def close(self) -> None:
        """Accept the clients that wait, so that they get the last output, and stop listening."""
        self._listener.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self._accept()
        self._listener.close()

    def _receive(self, client: socket.socket) -> None:
        try:
            message = client.recv(MAX_PACKET + 1)
        except OSError:
            message = b""
        if not message:
            self._disconnect(client)
        elif message[0] == STDIN:
            self._writers.add(client.fileno())
            self._pending += message[1:]
            self._write_input()
        elif message[0] == END_INPUT:
            self._end_input()
        elif message[0] == RESIZE and self._terminal >= 0:
            width, height = struct.unpack(SIZE_FORMAT, message[1:])
            with suppress(OSError):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))

    def _disconnect(self, client: socket.socket) -> None:
        number = client.fileno()
        with suppress(KeyError):
            self.poll.unregister(number)
        del self._clients[number]
        client.close()
        if number in self._writers:
            self._writers.discard(number)
            self._end_input()

    def _end_input(self) -> None:
        """A client has sent its last input; with stdinOnce that ends the container's input."""
        self._ending = self._ending or self._once
        self._write_input()

    def _write_input(self) -> None:
        before = bool(self._pending)
        while self._pending and self._stdin >= 0:
            try:
                self._pending = self._pending[os.write(self._stdin, self._pending) :]
            except BlockingIOError:
                break
            except OSError:  # the command has closed its input
                self._close_input()
        if self._stdin < 0:
            self._pending = b""
        elif self._ending and not self._pending:
            self._close_input()
        self._update_polling(before)

    def _update_polling(self, was_full: bool) -> None:
        """While input is pending, poll for space in the command's input instead of for clients' messages."""
        if self._pending:
            self.poll.register(self._stdin, select.POLLOUT)
            for number in self._clients:
                with suppress(KeyError):
                    self.poll.unregister(number)
        elif was_full:
            if self._stdin >= 0:
                with suppress(KeyError):
                    self.poll.unregister(self._stdin)
            for number in self._clients:
                self.poll.register(number, select.POLLIN)

    def _close_input(self) -> None:
        with suppress(KeyError):
            self.poll.unregister(self._stdin)
        os.close(self._stdin)
        self._stdin = -1


def open_attach_socket(directory: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{parent}/{SOCKET_NAME}")  # the full path may be too long for a socket
    finally:
        os.close(parent)
    listener.listen(16)
    return listener
