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

from .packets import DOOR, END, LONGEST, RESIZE, SIZE, STDERR, STDIN, STDOUT, WELCOME
from .spec import Spec
from .streams import Streams

_KEPT = 64 << 10  # bytes of what is said before the one who is expected comes
_PATIENCE = 10.0  # seconds for a visitor to take what it is told
_CHANNELS = {"stdout": STDOUT, "stderr": STDERR}


class Visitors:
    def __init__(self, door: socket.socket, spec: Spec, ends: Streams) -> None:
        self.poll = select.poll()
        self._door = door
        self._in, self._terminal = ends.way_in, ends.terminal
        # A terminal is never closed: where its input goes is also where the output comes from.
        self._once = spec["stdin_once"] and not spec["tty"]
        self._guests: dict[int, socket.socket] = {}
        self._speakers: set[int] = set()
        self._pending = b""  # said to the command, and not taken yet
        self._ending = False
        self._unheard: list[bytes] | None = [] if spec["stdin_once"] else None
        if self._in >= 0:
            os.set_blocking(self._in, False)
        self.poll.register(door, select.POLLIN)

    def handle(self, descriptor: int) -> None:
        if descriptor == self._door.fileno():
            self._let_in()
        elif descriptor == self._in:
            self._pass_on()
        elif descriptor in self._guests:  # or has just been shown out
            self._hear(self._guests[descriptor])

    def _let_in(self) -> None:
        guest, _ = self._door.accept()
        guest.settimeout(_PATIENCE)
        self._guests[guest.fileno()] = guest
        if not self._pending:
            self.poll.register(guest, select.POLLIN)
        # An input that is for one client only has one who is meant to hear everything.
        unheard, self._unheard = self._unheard or [], None
        for packet in (bytes([WELCOME]), *unheard):
            self._send(guest, packet)

    def tell(self, stream: str, data: bytes) -> None:
        packet = bytes([_CHANNELS[stream]]) + data
        for guest in list(self._guests.values()):
            self._send(guest, packet)
        if self._unheard is not None:
            self._unheard.append(packet)
            while sum(map(len, self._unheard)) > _KEPT:
                del self._unheard[0]

    def _send(self, guest: socket.socket, packet: bytes) -> None:
        try:
            guest.sendall(packet)
        except OSError:  # gone, or deaf
            if guest.fileno() in self._guests:
                self._show_out(guest)

    def close(self) -> None:
        """Whoever stands at the door still hears how it ended."""
        self._door.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self._let_in()
        self._door.close()

    def _hear(self, guest: socket.socket) -> None:
        try:
            message = guest.recv(LONGEST + 1)
        except OSError:
            message = b""
        if not message:
            self._show_out(guest)
        elif message[0] == STDIN:
            self._speakers.add(guest.fileno())
            self._pending += message[1:]
            self._pass_on()
        elif message[0] == END:
            self._end()
        elif message[0] == RESIZE and self._terminal >= 0:
            width, height = struct.unpack(SIZE, message[1:])
            with suppress(OSError):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))

    def _show_out(self, guest: socket.socket) -> None:
        number = guest.fileno()
        with suppress(KeyError):
            self.poll.unregister(number)
        del self._guests[number]
        guest.close()
        if number in self._speakers:
            self._speakers.discard(number)
            self._end()

    def _end(self) -> None:
        """Who was to give the input has given it."""
        self._ending = self._ending or self._once
        self._pass_on()

    def _pass_on(self) -> None:
        before = bool(self._pending)
        while self._pending and self._in >= 0:
            try:
                self._pending = self._pending[os.write(self._in, self._pending) :]
            except BlockingIOError:
                break
            except OSError:  # the command has closed its input, and does not care
                self._close()
        if self._in < 0:
            self._pending = b""
        elif self._ending and not self._pending:
            self._close()
        self._listen(before)

    def _listen(self, was_full: bool) -> None:
        """While the command has something to read, nobody else is heard."""
        if self._pending:
            self.poll.register(self._in, select.POLLOUT)
            for number in self._guests:
                with suppress(KeyError):
                    self.poll.unregister(number)
        elif was_full:
            if self._in >= 0:
                with suppress(KeyError):
                    self.poll.unregister(self._in)
            for number in self._guests:
                self.poll.register(number, select.POLLIN)

    def _close(self) -> None:
        with suppress(KeyError):
            self.poll.unregister(self._in)
        os.close(self._in)
        self._in = -1


def open_door(directory: str) -> socket.socket:
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        door.bind(f"/proc/self/fd/{place}/{DOOR}")  # a path of its own may be too long
    finally:
        os.close(place)
    door.listen(16)
    return door
