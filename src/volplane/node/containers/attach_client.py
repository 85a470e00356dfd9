"""Attach, on the node's side: packets to and from the shim that holds a container's streams.

The shim outlives the node, so it listens on a socket in the container's directory. For the messages see
`launcher.attach_protocol`, for the backpressure `launcher.attach_server`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator

from volplane.base.sockets import short_path
from volplane.host.processes import wait_readable, wait_writable
from volplane.node.containers.base import AttachRefused, ContainerNotRunning
from volplane.node.containers.launcher.attach_protocol import (
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
from volplane.node.containers.launcher_client import TIMEOUT

_STREAMS = {STDOUT: "stdout", STDERR: "stderr"}
_CHUNK = 16 << 10


class AttachConnection:
    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    async def open(cls, directory: str) -> AttachConnection:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.setblocking(False)
        connection = cls(end)
        try:
            with short_path(f"{directory}/{SOCKET_NAME}") as path:
                end.connect(path)
            async with asyncio.timeout(TIMEOUT):
                if await connection._receive() != bytes([ATTACHED]):  # it exited before it accepted us
                    raise ContainerNotRunning(os.path.basename(directory))
        except OSError as error:
            end.close()
            raise AttachRefused(f"cannot connect to the container's streams: {error}") from error
        except BaseException:
            end.close()
            raise
        return connection

    async def read_output(self) -> AsyncIterator[tuple[str, bytes]]:
        while message := await self._receive():
            yield _STREAMS[message[0]], message[1:]

    async def _receive(self) -> bytes:
        """The next packet; b"" at the end."""
        while True:
            try:
                return self._socket.recv(MAX_PACKET + 1)
            except BlockingIOError:
                await wait_readable(self._socket.fileno())
            except ConnectionResetError:
                return b""

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data) or 1, _CHUNK):
            await self._send(bytes([STDIN]) + data[start : start + _CHUNK])

    async def end_input(self) -> None:
        await self._send(bytes([END_INPUT]))

    async def resize(self, width: int, height: int) -> None:
        await self._send(bytes([RESIZE]) + struct.pack(SIZE_FORMAT, min(width, 0xFFFF), min(height, 0xFFFF)))

    async def _send(self, message: bytes) -> None:
        while True:
            try:
                self._socket.send(message)
            except BlockingIOError:
                await wait_writable(self._socket.fileno())
            except ConnectionError:  # the container has exited; `read_output` ends, too
                return
            else:
                return

    def close(self) -> None:
        self._socket.close()
