"""The node's side of the launcher: starts it when needed, sends requests, reads answers.

Every request carries the socket for its own answer. When the launcher or its fork dies, the kernel closes the
other end, so a missing answer is noticed at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from volplane.base.log import rotate
from volplane.host import Host, Process
from volplane.host.processes import wait_readable, wait_writable
from volplane.node.containers.base import StartFailed

TIMEOUT = 60.0
EXIT_WAIT = 0.5

LauncherAnswer = dict[str, Any] | None

_LAUNCHER_SCRIPT = """\
import json, sys
sys.path.append(sys.argv[1])
from launcher.serve import main
main(int(sys.argv[2]), *json.loads(sys.argv[3]))
"""
_PACKAGE_DIRECTORY = os.path.dirname(os.path.abspath(__file__))


def interpreter_paths() -> list[str]:
    """Directories of the Python that runs this process: drivers and tools on this machine use it, too."""
    prefixes = (sys.prefix, sys.base_prefix)
    return sorted({*prefixes, *map(os.path.realpath, prefixes)})


class LauncherReply:
    """The answers to one request, one JSON object a line; a terminal comes as a descriptor."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._text = b""
        self.descriptors: list[int] = []

    async def read_answer(self) -> LauncherAnswer:
        """The next answer; None if the other side has closed the connection."""
        while b"\n" not in self._text:
            await wait_readable(self._socket.fileno())
            data, descriptors, _, _ = socket.recv_fds(self._socket, 65536, 4, socket.MSG_CMSG_CLOEXEC)
            self.descriptors += descriptors
            if not data:
                return None
            self._text += data
        line, self._text = self._text.split(b"\n", 1)
        answer: dict[str, Any] = msgspec.json.decode(line)
        return answer

    def hang_up(self) -> None:
        """Tell the other side to stop; its last answer can still be read."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()
        self._socket.close()


class LauncherClient:
    """One may serve several nodes of one process. `cover`: paths that are hidden from all containers;
    `shell`: the program that is their /bin/sh, if it is not this machine's.
    """

    def __init__(
        self, host: Host, *, cover: Sequence[str] = (), log: str = os.devnull, shell: str = ""
    ) -> None:
        self._host, self._log, self._shell = host, log, shell
        self._cover = sorted({os.path.realpath(path) for path in cover})
        self._process: Process | None = None
        self._socket: socket.socket | None = None
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def prepare(self) -> None:
        """Start the launcher, so that the first container need not wait for it."""
        async with self._starting:
            if self._process is not None and not self._process.running:
                await self._stop()
            if self._process is None:
                await self._start()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        number = theirs.fileno()
        await self._host.call(rotate, self._log)
        # In the C locale with Python's UTF-8 mode, the C library never loads a converter or a message
        # catalogue.
        python = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _LAUNCHER_SCRIPT]
        given = json.dumps([self._cover, interpreter_paths(), self._shell])
        argv = [*python, _PACKAGE_DIRECTORY, str(number), given]
        try:
            self._process = await self._host.spawn(
                argv, fds=[number], log=self._log, env={"LANG": "C", "LC_ALL": "C"}
            )
            self._socket = ours
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    async def ask(
        self, request: dict[str, Any], descriptors: Sequence[int] = ()
    ) -> tuple[LauncherReply, LauncherAnswer]:
        """Send a request.

        Return the reply for further answers, and the first one (None: the fork was killed).
        """
        data = msgspec.json.encode(request)
        async with asyncio.timeout(TIMEOUT):
            for _ in range(2):  # the launcher may have been killed since the last request
                await self.prepare()
                reply = await self._send_request(data, descriptors)
                try:
                    answer = await reply.read_answer()
                except BaseException:
                    reply.close()  # tells the other side to give up
                    raise
                if answer is not None or not await self._has_died():
                    return reply, answer
                reply.close()  # no process that has read the request is left
        raise StartFailed("the container launcher was killed twice")

    async def _send_request(self, data: bytes, descriptors: Sequence[int]) -> LauncherReply:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            await self._send(data, [theirs.fileno(), *descriptors])
        except ConnectionError:
            pass  # the caller sees that the answer is missing
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return LauncherReply(ours)

    async def _has_died(self) -> bool:
        # The kernel closes its descriptors a moment before it reports the exit.
        process = self._process
        if process is None:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_WAIT):
                await process.wait()
        return not process.running

    async def _send(self, data: bytes, descriptors: list[int]) -> None:
        while (end := self._socket) is not None:
            try:
                socket.send_fds(end, [data], descriptors)
            except BlockingIOError:
                await wait_writable(end.fileno())
            else:
                return
        raise BrokenPipeError

    async def _stop(self) -> None:
        end, process = self._socket, self._process
        self._socket = self._process = None
        if end is not None:
            end.close()  # the launcher exits
        if process is not None:
            await process.wait()

    async def close(self) -> None:
        async with self._starting:
            await self._stop()
