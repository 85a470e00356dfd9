"""Whoever is attached to a container: hears what it says, and may speak to it.

The door is a socket in the container's directory, so that every life of the node finds it. The subtle thing
is who waits for whom: a visitor that does not listen holds the container up for a while and is then shown
out, and a command that does not read its input holds up those who speak to it, never its own output.
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

_BACKLOG_LIMIT = 64 << 10  # bytes of what is said before the one who is expected comes
_SEND_TIMEOUT = 10.0  # seconds for a visitor to take what it is told
_CHANNELS = {"stdout": STDOUT, "stderr": STDERR}


class AttachServer:
    def __init__(self, door: socket.socket, spec: Spec, ends: ContainerStreams) -> None:
        self.poll = select.poll()
        self._listener = door
        self._stdin, self._terminal = ends.stdin, ends.terminal
        # A terminal is never closed: where its input goes is also where the output comes from.
        self._once = spec["stdin_once"] and not spec["tty"]
        self._clients: dict[int, socket.socket] = {}
        self._writers: set[int] = set()
        self._pending = b""  # said to the command, and not taken yet
        self._ending = False
        self._backlog: list[bytes] | None = [] if spec["stdin_once"] else None
        if self._stdin >= 0:
            os.set_blocking(self._stdin, False)
        self.poll.register(door, select.POLLIN)

    def handle(self, descriptor: int) -> None:
        if descriptor == self._listener.fileno():
            self._accept()
        elif descriptor == self._stdin:
            self._write_input()
        elif descriptor in self._clients:  # or has just been shown out
            self._receive(self._clients[descriptor])

    def _accept(self) -> None:
        guest, _ = self._listener.accept()
        guest.settimeout(_SEND_TIMEOUT)
        self._clients[guest.fileno()] = guest
        if not self._pending:
            self.poll.register(guest, select.POLLIN)
        # An input that is for one client only has one who is meant to hear everything.
        unheard, self._backlog = self._backlog or [], None
        for packet in (bytes([ATTACHED]), *unheard):
            self._send(guest, packet)

    def broadcast(self, stream: str, data: bytes) -> None:
        packet = bytes([_CHANNELS[stream]]) + data
        for guest in list(self._clients.values()):
            self._send(guest, packet)
        if self._backlog is not None:
            self._backlog.append(packet)
            while sum(map(len, self._backlog)) > _BACKLOG_LIMIT:
                del self._backlog[0]

    def _send(self, guest: socket.socket, packet: bytes) -> None:
        try:
            guest.sendall(packet)
        except OSError:  # gone, or deaf
            if guest.fileno() in self._clients:
                self._disconnect(guest)

    def close(self) -> None:
        """Whoever stands at the door still hears how it ended."""
        self._listener.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self._accept()
        self._listener.close()

    def _receive(self, guest: socket.socket) -> None:
        try:
            message = guest.recv(MAX_PACKET + 1)
        except OSError:
            message = b""
        if not message:
            self._disconnect(guest)
        elif message[0] == STDIN:
            self._writers.add(guest.fileno())
            self._pending += message[1:]
            self._write_input()
        elif message[0] == END_INPUT:
            self._end_input()
        elif message[0] == RESIZE and self._terminal >= 0:
            width, height = struct.unpack(SIZE_FORMAT, message[1:])
            with suppress(OSError):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))

    def _disconnect(self, guest: socket.socket) -> None:
        number = guest.fileno()
        with suppress(KeyError):
            self.poll.unregister(number)
        del self._clients[number]
        guest.close()
        if number in self._writers:
            self._writers.discard(number)
            self._end_input()

    def _end_input(self) -> None:
        """Who was to give the input has given it."""
        self._ending = self._ending or self._once
        self._write_input()

    def _write_input(self) -> None:
        before = bool(self._pending)
        while self._pending and self._stdin >= 0:
            try:
                self._pending = self._pending[os.write(self._stdin, self._pending) :]
            except BlockingIOError:
                break
            except OSError:  # the command has closed its input, and does not care
                self._close_input()
        if self._stdin < 0:
            self._pending = b""
        elif self._ending and not self._pending:
            self._close_input()
        self._update_polling(before)

    def _update_polling(self, was_full: bool) -> None:
        """While the command has something to read, nobody else is heard."""
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
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        door.bind(f"/proc/self/fd/{place}/{SOCKET_NAME}")  # a path of its own may be too long
    finally:
        os.close(place)
    door.listen(16)
    return door
